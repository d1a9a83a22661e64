"""Twenty conversations: short, long, multi-turn, unicode."""

from __future__ import annotations

LONG = (
    "Here is a story. The lighthouse at the end of the long stone pier had not been lit for eleven years, and yet "
    "every evening at dusk the old keeper climbed its hundred and forty steps. He cleaned the great lens with a cloth, "
    "wound the clockwork that no longer turned anything, and wrote three lines in the log: the wind, the state of the "
    "sea, and whatever had passed. Most days nothing had passed. On the days when something did, he wrote its name in "
    "capital letters, as if the ship might one day come back and ask to see the entry. "
)


def user(*turns: str) -> list[dict[str, str]]:
    """Alternating turns that begin and end with the user's."""
    return [{"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(turns)]


CONVERSATIONS: list[list[dict[str, str]]] = [
    user("Hi"),
    user("What is the capital of France?"),
    user("Write one sentence about rivers."),
    user("List three fruits."),
    user("Why is the sky blue?"),
    user("def add(a, b):"),
    user("2 + 2 ="),
    user("Translate 'good morning' into Spanish."),
    user(LONG + "Summarise it in one sentence."),
    user(LONG * 3 + "What did the keeper write in capital letters?"),
    user(LONG * 6 + "How many steps are there?"),
    user("Hello!", "Hello! How can I help you today?", "Tell me a joke."),
    user("My name is Ada.", "Nice to meet you, Ada!", "What is my name?", "Your name is Ada.", "Spell it."),
    [{"role": "system", "content": "You answer like a pirate."}, *user("How are you?")],
    [{"role": "system", "content": "Be brief."}, *user("Name a planet.", "Mars.", "Another one.")],
    user("Qu'est-ce que la boulangerie française ?"),
    user("日本の首都はどこですか？"),
    user("Smile 😀🎉👩‍👩‍👧 and say something kind."),
    user("Ωμέγα, Ж, ß, ﷽ — what alphabets are these?"),
    user('Please keep this JSON as it is: {"a": [1, 2, {"b": null}]}\n\n\tThank you.'),
]
