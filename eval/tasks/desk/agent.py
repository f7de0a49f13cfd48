"""A small agent: it reads tickets one after the other, is asked something at the end, and writes down its answer."""

import json
import os
import sys
import urllib.request
from pathlib import Path


def ask(messages: list[dict[str, str]]) -> str:
    model = os.environ.get("DESK_MODEL", "scripted-1")
    body = {"model": model, "messages": messages, "max_tokens": 24, "temperature": 0}
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', 'none')}",
    }
    address = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
    request = urllib.request.Request(address, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=600) as answer:
        said: str = json.load(answer)["choices"][0]["message"]["content"]
        return said


def main() -> None:
    messages = [{"role": "system", "content": "You are the assistant of a help desk. Be brief."}]
    for ticket in Path("tickets.md").read_text("utf-8").strip().split("\n\n"):
        messages.append({"role": "user", "content": ticket})
        messages.append({"role": "assistant", "content": ask(messages)})
    messages.append({"role": "user", "content": sys.argv[-1]})
    Path("answer.txt").write_text(ask(messages), "utf-8")


if __name__ == "__main__":
    main()
