"""A chat loop with a memory for each user.

Type a message a line; an empty line ends. Without `--model` replies only show what was remembered.

    python examples/chatbot.py --user ana --say "I live in Porto." --say "Where do I live?"
    python examples/chatbot.py --user ana --policy openai:gpt-4o-mini --model openai:gpt-4o-mini
"""

import argparse
from datetime import UTC, datetime

from memalpha import MemoryAgent, MemoryStore, load_policy
from memalpha.types import Chunk, SampleRequest, SpeakerTurn


def reply(model, message, notes):
    """Return the model's reply to a message, with notes in the prompt; without a model, the best note."""
    if model is None:
        return f"I remember: {notes[0]}" if notes else "I do not know you yet."
    system = "You are a kind assistant. Notes about the user:\n" + "\n".join(notes)
    messages = ({"role": "system", "content": system}, {"role": "user", "content": message})
    return model.sample([SampleRequest(messages)])[0].text


def chat(agent, model, messages):
    """Answer each message from memory, then read the exchange into memory."""
    for message in messages:
        hits = agent.store.search(message, k=5)
        notes = [f"{hit.entry.timestamp or ''} {hit.entry.content}".strip() for hit in hits]
        answer = reply(model, message, notes)
        print(f"bot: {answer}")
        turns = (SpeakerTurn(speaker="user", text=message), SpeakerTurn(speaker="assistant", text=answer))
        now = datetime.now(UTC).isoformat(timespec="seconds")
        agent.read(Chunk(turns=turns, timestamp=now), source="chat")


def typed_messages():
    """Yield typed lines until an empty one."""
    while message := input("you: ").strip():
        yield message


def main():
    """Open the user's namespace and chat."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--user", default="ana")
    parser.add_argument("--db", default="chat.db")
    parser.add_argument("--policy", default="add_all", help="writer: add_all, a run, openai:MODEL, ...")
    parser.add_argument("--model", help="model that replies: openai:MODEL or http://host/v1#MODEL")
    parser.add_argument("--say", action="append", help="a message; repeat for several (default: type them)")
    options = parser.parse_args()
    model = load_policy(options.model) if options.model else None
    store = MemoryStore.open(options.db)
    with store.namespace(options.user) as memory:  # users never see each other's memory
        chat(MemoryAgent(options.policy, memory), model, options.say or typed_messages())
    store.close()


if __name__ == "__main__":
    main()
