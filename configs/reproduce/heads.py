"""Trained heads of one target: acceptance by position, tokens per target pass, and speed.

specjax reproduce configs/reproduce/heads.py --heads eagle3=runs/eagle3/head hass=runs/hass/head medusa=runs/medusa/head
"""

from specjax.reproduce.setup import Preset

REPRODUCE = Preset(name="heads", count=16)
