"""Prompts through Ray Data: a model on every TPU host, for clusters that already run Ray. Requires the extra `ray`.

    python tpu_scripts/ray_data.py gs://bucket/prompts.jsonl gs://bucket/answers --hosts 4

Each actor owns the chips of one host: slices of a single host only. Without a Ray cluster, use `specjax job run`, which
resumes; Ray Data starts a dataset again from the beginning.
"""

import argparse

ROWS = 16  # prompts decoded together


class Decoder:
    """An actor: loads the models once, then decodes batches."""

    def __init__(self, target: str, draft: str, new_tokens: int):
        from specjax import config

        options = {"dtype": "bfloat16", "max_new_tokens": new_tokens}
        self.run = config.build(config.RunConfig(target, draft=draft, **options))

    def __call__(self, batch: dict) -> dict:
        """Adds a text and a stop reason to each row. `row` numbers its random stream, so the place does not matter."""
        prompts, rows = [str(prompt) for prompt in batch["prompt"]], [int(row) for row in batch["row"]]
        missing = ROWS - len(prompts)  # one batch size compiles
        out = self.run.generate(prompts + prompts[:1] * missing, rows=rows + rows[:1] * missing)
        return {**batch, "text": out.texts[: len(prompts)], "stop": out.stop_reasons[: len(prompts)]}


def main() -> None:
    import ray

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", help='.jsonl with a "prompt" and its number "row" in each line')
    parser.add_argument("out", help="folder of the answers")
    parser.add_argument("--target", default="bundled/opt-target")
    parser.add_argument("--draft", default="bundled/opt-draft")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--chips", type=int, default=8, help="TPU chips of a host")
    args = parser.parse_args()
    answers = ray.data.read_json(args.prompts).map_batches(
        Decoder,
        fn_constructor_args=(args.target, args.draft, args.new_tokens),
        batch_size=ROWS,
        concurrency=args.hosts,
        resources={"TPU": args.chips},
    )
    answers.write_json(args.out)


if __name__ == "__main__":
    main()
