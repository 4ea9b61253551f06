"""All kinds of heads."""

from jax.sharding import PartitionSpec as P

from specjax.heads import dflash_formats as dflash_files
from specjax.heads import eagle_formats as eagle_files
from specjax.heads import falcon_formats as falcon_files
from specjax.heads import medusa_formats as medusa_files
from specjax.heads import mlp_formats as mlp_files
from specjax.heads import peagle_formats as peagle_files
from specjax.heads import spire_formats as spire_files
from specjax.heads.dflash import DFlash
from specjax.heads.eagle import Eagle, Eagle3
from specjax.heads.falcon import Falcon
from specjax.heads.head import Kind
from specjax.heads.medusa import Medusa
from specjax.heads.mlp import MLPSpeculator
from specjax.heads.peagle import PEagle
from specjax.heads.spire import Spire
from specjax.models.family import COLUMNS, ROWS, VECTOR, WHOLE, Rule, Rules, bias_rules, kernel_rules

LAYER_RULES = (
    *kernel_rules(mlp="gate|up"),
    *bias_rules(mlp="gate|up"),
    Rule(r"layers\.(attn_norm|mlp_norm|attn\.[qk]_norm)\.(scale|bias)", (VECTOR,)),
    Rule(r"fc\.kernel", (COLUMNS, WHOLE)),
    Rule(r"fc\.cells\.\d+\.(ih|hh)\.kernel", (COLUMNS, WHOLE)),
    Rule(r"fc\.cells\.\d+\.(ih|hh)\.bias", (VECTOR,)),
    Rule(r"embed\.table", (ROWS, WHOLE)),
    Rule(r"head\.kernel", (COLUMNS, WHOLE)),
    Rule(r"(embed_norm|hidden_norm|input_norm|final_norm|out_norm|fc_norm\.\d+)\.(scale|bias)", (VECTOR,)),
    Rule(r"fc\.bias", (VECTOR,)),
    Rule(r"mask_hidden", (P(None, None, None),)),
    Rule(r"mix", (P(None, None),)),
)
MEDUSA_RULES = Rules((
    Rule(r"blocks\.\d+\.\d+\.kernel", (WHOLE,)),
    Rule(r"blocks\.\d+\.\d+\.bias", (VECTOR,)),
    Rule(r"heads\.\d+\.kernel", (COLUMNS, WHOLE)),
), heads=None)  # fmt: skip
MLP_RULES = Rules((
    Rule(r"emb\.\d+\.table", (ROWS, WHOLE)),
    Rule(r"proj\.\d+\.kernel", (WHOLE,)),
    Rule(r"ln\.\d+\.(scale|bias)", (VECTOR,)),
    Rule(r"head\.\d+\.kernel", (COLUMNS, WHOLE)),
), heads=None)  # fmt: skip
# Heads of attention need not divide over the mesh: GSPMD splits columns wherever they fall.
RULES = Rules(LAYER_RULES, heads=None)
KINDS = {
    "spire": Kind("spire", Spire, None, spire_files.SPIRE_FORMATS, RULES),
    "peagle": Kind("peagle", PEagle, peagle_files.NAMES, peagle_files.PEAGLE_FORMATS, RULES),
    "dflash": Kind("dflash", DFlash, dflash_files.NAMES, dflash_files.DFLASH_FORMATS, RULES),
    "eagle3": Kind("eagle3", Eagle3, eagle_files.NAMES_3, eagle_files.EAGLE3_FORMATS, RULES),
    "falcon": Kind("falcon", Falcon, falcon_files.NAMES, falcon_files.FALCON_FORMATS, RULES),
    "eagle": Kind("eagle", Eagle, eagle_files.NAMES, eagle_files.EAGLE_FORMATS, RULES),
    "medusa": Kind("medusa", Medusa, None, medusa_files.MEDUSA_FORMATS, MEDUSA_RULES, encoder_decoder=True),
    "mlp": Kind("mlp", MLPSpeculator, None, mlp_files.MLP_FORMATS, MLP_RULES, encoder_decoder=True),
}
