"""A chat in ten lines that remembers its users: one model answers and writes the memory.

    python examples/ten_line_chat.py --say "I moved to Porto last week." --say "Where do I live?"
    python examples/ten_line_chat.py --model http://localhost:8000/v1#MODEL --say "My dog is called Rex."

`openai:gpt-4o-mini`, the default, needs OPENAI_API_KEY; any OpenAI-compatible server will do.
"""

import argparse

from memalpha import MemoryAgent, MemoryStore, load_policy
from memalpha.types import SampleRequest


def chat(store, model, user, message):
    """Answer a user's message from memory, then let the model write down what is worth remembering."""
    with store.namespace(user) as memory:
        notes = [hit.entry.content for hit in memory.search(message, k=3)]
        system = {"role": "system", "content": "\n".join(["What you know of the user:", *notes])}
        question = {"role": "user", "content": message}
        answer = model.sample([SampleRequest((system, question))])[0].text
        MemoryAgent(model, memory).read([question, {"role": "assistant", "content": answer}])
    return answer


def main():
    """Send messages and show what is remembered."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="openai:gpt-4o-mini", help="openai:MODEL or http://host/v1#MODEL")
    parser.add_argument("--user", default="ana")
    parser.add_argument("--db", default="users.db")
    parser.add_argument("--say", action="append", required=True, help="a message; repeat for several")
    options = parser.parse_args()
    model = load_policy(options.model)
    with MemoryStore.open(options.db) as store:
        for message in options.say:
            print(f"bot: {chat(store, model, options.user, message)}")
        print("memory:", [entry.content for entry in store.namespace(options.user).list()])


if __name__ == "__main__":
    main()
