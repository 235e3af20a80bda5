"""Answer the prompts of a file, a JSON object on each line, and append the answers to another as they come.

    echo '{"id": 1, "prompt": "Name three primes."}' > prompts.jsonl
    python examples/batch.py prompts.jsonl answers.jsonl                     # a small model on this machine
    python examples/batch.py prompts.jsonl answers.jsonl openai:gpt-5-mini   # or another

Run it again after a Ctrl-C, a crash or failures: what is answered is not asked again.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import rxllm

AT_A_TIME = 8
MAX_TOKENS = 300  # of each answer: a small model may never come to an end


def read(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def drop_half_a_line(path: Path) -> None:
    """Take away the end of a line that was being written when the last run was killed."""
    path.touch()
    os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def run(prompts: Path, answers: Path, model: str) -> int:
    """Return how many prompts have failed."""
    drop_half_a_line(answers)
    answered = {answer["id"] for answer in read(answers)}
    tasks = [task for task in read(prompts) if task["id"] not in answered]
    print(f"{len(answered)} answered before, {len(tasks)} to do", file=sys.stderr)
    to_do = [task["prompt"] for task in tasks]
    responses = rxllm.generate_many(model, to_do, concurrency=AT_A_TIME, ordered=False, max_tokens=MAX_TOKENS)
    tokens, failures = 0, list[str]()
    with answers.open("a", encoding="utf-8") as file:
        for done, response in enumerate(responses, 1):
            task = tasks[response.metadata["request_index"]]
            if response.error:
                failures.append(f"{task['id']}: {response.error}")
            else:
                answer = {"id": task["id"], "answer": response.output_text, "finish_reason": response.finish_reason}
                file.write(json.dumps(answer, ensure_ascii=False) + "\n")
                file.flush()
            tokens += response.usage.total
            progress = f"\r{done} of {len(tasks)}, {len(failures)} failed, {tokens:,} tokens"
            print(progress, end="", file=sys.stderr, flush=True)
    print("", *failures, sep="\n", file=sys.stderr)
    return len(failures)


if __name__ == "__main__":
    if len(sys.argv) not in (3, 4):
        sys.exit("python examples/batch.py PROMPTS ANSWERS [MODEL]")
    try:
        sys.exit(bool(run(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "local")))
    except KeyboardInterrupt:
        sys.exit("\nstopped; run it again to go on")
