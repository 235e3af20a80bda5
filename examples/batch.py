"""Answer the prompts in a file, and append each answer to a second file as soon as it arrives.

Each line of the first file is a JSON object with an `id` and a `prompt`:

    echo '{"id": 1, "prompt": "Name three primes."}' > prompts.jsonl
    python examples/batch.py prompts.jsonl answers.jsonl                     # with a small model on this machine
    python examples/batch.py prompts.jsonl answers.jsonl openai:gpt-5-mini   # or with another model

After a Ctrl-C, a crash or failed calls, run it again: it sends only the prompts that have no answer yet. Each line of
the second file has an `id` and a `response`, which you can read with `rxllm.serializer.from_data`.
"""

import json
import sys
from pathlib import Path

import rxllm
from rxllm import operators as ops

AT_A_TIME = 8
MAX_TOKENS = 300  # per answer, because a small model might never stop
LIMIT = ops.rate_limited(requests_per_minute=5_000, tokens_per_minute=2_000_000)  # put your account's limits here


def read(path: Path) -> dict[str | int, str]:
    with path.open(encoding="utf-8") as lines:
        tasks = [json.loads(line) for line in lines if line.strip()]
    return {task["id"]: task["prompt"] for task in tasks}


def run(prompts: Path, answers: Path, model: str) -> int:
    """Answer the prompts, and return the number of failures."""
    engine = rxllm.Engine(model, operators=[LIMIT])
    responses = rxllm.generate_many(
        engine,
        read(prompts),
        journal=answers,
        concurrency=AT_A_TIME,
        ordered=False,
        on_progress=rxllm.display.progress_bar(),
        max_tokens=MAX_TOKENS,
    )
    failures = [f"{response.metadata['request_id']}: {response.error}" for response in responses if response.error]
    print(*failures, sep="\n", file=sys.stderr)
    return len(failures)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("python examples/batch.py PROMPTS ANSWERS [MODEL]")
    try:
        sys.exit(bool(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "local")))
    except rxllm.LLMError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit("\nstopped; run it again to continue")
