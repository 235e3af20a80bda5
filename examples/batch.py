"""Answer the prompts of a file, a JSON object on each line, and append the answers to another as they arrive.

    echo '{"id": 1, "prompt": "Name three primes."}' > prompts.jsonl
    python examples/batch.py prompts.jsonl answers.jsonl                     # a small model on this machine
    python examples/batch.py prompts.jsonl answers.jsonl openai:gpt-5-mini   # or another

Run it again after a Ctrl-C, a crash or failures: answered prompts are not sent again. Each line of the answers has the
`id` and the `response`, which `rxllm.serializer.from_data` reads.
"""

import json
import sys
from pathlib import Path

import rxllm
from rxllm import operators as ops

AT_A_TIME = 8
MAX_TOKENS = 300  # per answer: a small model may never stop
LIMIT = ops.rate_limited(requests_per_minute=5_000, tokens_per_minute=2_000_000)  # the limits of your account


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
