"""What an assistant said counts less, unless the question is about it; so does a turn that asks."""

import pytest

from memalpha import MemoryStore
from memalpha.store.search.ranking import ROLE_WEIGHT, asks_for_assistants, is_assistants

LINES = (
    "user: I keep my bicycle in the cellar of the old house.",
    "assistant: A bicycle in the cellar of an old house should stand away from the damp wall.",
    "user: Thanks, good to know.",
)


@pytest.fixture
def store():
    with MemoryStore.open(":memory:") as store:
        store.insert_many(
            {"category": "episodic", "content": line, "source": "chat", "chunk": 0, "turn": str(number)}
            for number, line in enumerate(LINES)
        )
        yield store


def scores(store, query, **options):
    return {hit.entry.content: hit.score for hit in store.search(query, **options)}


def test_the_words_of_an_assistant_lose_the_weight(store):
    query = "Where is my bicycle?"
    without = scores(store, query, weights={"role": 0.0})
    for content, score in scores(store, query).items():
        assert score == pytest.approx(without[content] - ROLE_WEIGHT * content.startswith("assistant"))
    explained = {hit.entry.content: hit.explain.get("role") for hit in store.search(query)}
    assert explained == {line: -1.0 if line.startswith("assistant") else None for line in LINES}


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        ("assistant: yes", True),
        ("7 May 2023 Assistant: yes", True),
        ("ChatGPT: yes", True),
        ("助手\uff1a好的", True),
        ("user: the assistant: he said", False),
        ("Ana: yes", False),
        ("agent: how may I help?", False),  # a person in a support chat
        ("assistants are: many", False),
    ],
)
def test_labels(text, is_it):
    assert is_assistants(text) is is_it


@pytest.mark.parametrize(
    ("query", "is_it"),
    [
        ("What did you recommend for my knee?", True),
        ("Which three books had you listed?", True),
        ("What was the name of the hotel you mentioned?", True),
        ("What was the last step of your recipe suggestion?", True),
        ("What did the assistant say about Kyoto?", True),
        ("Which wine have you suggested I buy?", True),
        ("Can you list the order in which I brought up my projects?", False),
        ("What snacks do you recommend for me?", False),
        ("Can you give me a summary of my plans?", False),
        ("Where did I move in May?", False),
        ("What did Ana suggest?", False),
        ("Welches Hotel hast du mir für Wien empfohlen?", True),
        ("Wie hieß das Buch, das du neulich erwähnt hast?", True),
        ("Hast du meine neue Adresse?", False),
        ("Was hat Ana mir empfohlen?", False),
        ("Quel vin tu m'as conseillé pour samedi ?", True),
        ("Combien de pas avez-vous proposés ?", True),
        ("Que m'a dit Ana ?", False),
        ("¿Qué libro me recomendaste para el viaje?", True),
        ("¿Cuál fue tu recomendación?", True),
        ("¿Qué me recomendó Ana?", False),
        ("Que filme você me sugeriu?", True),
        ("Quale albergo mi hai consigliato?", True),
        ("Quando ho cambiato lavoro?", False),
        ("Welk boek heb je toen aangeraden?", True),
        ("Heb je mijn adres?", False),
        ("Какую книгу ты мне посоветовал?", True),
        ("Что посоветовала Анна?", False),
        ("你之前推荐的餐厅叫什么\uff1f", True),
        ("你給我推薦過哪本書\uff1f", True),
        ("你建议我去哪里\uff1f", False),
        ("我什么时候搬家的\uff1f", False),
        ("あなたが勧めてくれた本は\uff1f", True),
        ("田中さんが勧めてくれた本は\uff1f", False),
        ("네가 추천한 식당 이름이 뭐였지?", True),
        ("내가 언제 이사했지?", False),
    ],
)
def test_questions_about_an_assistant(query, is_it):
    assert asks_for_assistants(query) is is_it
