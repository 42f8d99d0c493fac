"""Readers: one prompt per distinct question and memory, and the conflict rule."""

import json
import re
from pathlib import Path

import pytest
from fake_policy import FakePolicy
from hypothesis import given
from hypothesis import strategies as st
from memories import working_memory

from memalpha import MemoryAgent, MemoryStore
from memalpha.agent.copying_reader import CopyReader, copy_answer
from memalpha.agent.reader import (
    ExtractiveReader,
    PolicyReader,
    QuotingReader,
    RetrievedMemory,
    answer_slot,
    default_reader,
    in_conflict,
    states_several_values,
)
from memalpha.agent.transcript import split_label
from memalpha.config import AgentConfig, ReaderConfig
from memalpha.qa.scoring.metrics import score_question
from memalpha.store.values import contains, is_abstention, is_same, key_value, normalize
from memalpha.types import Completion, Hit, MemoryEntry, Question


def fixed(text: str) -> FakePolicy:
    return FakePolicy(lambda _: text)


def test_an_answer_says_whether_it_was_cut():
    for stop in ("eos", "length"):
        policy = FakePolicy(lambda _, stop=stop: Completion("Oslo", stop_reason=stop))
        for cite in (False, True):
            reader = PolicyReader(policy, ReaderConfig(cite=cite))
            (answer,) = reader.answer([("Where?", working_memory("city: Oslo"))])
            assert answer.truncated == (stop == "length") and answer.hits


def test_equal_prompts_are_asked_once():
    policy = fixed("Oslo")
    assert PolicyReader(policy).answer([]) == [] and policy.requests == []
    one, two, other = working_memory("city: Oslo"), working_memory("city: Oslo"), working_memory("city: Rome")
    items = [("Where?", one), ("Where?", two), ("Where?", other), ("When?", one)]
    answers = PolicyReader(policy, ReaderConfig(prompt="compact")).answer(items)
    assert len(policy.requests) == 3 and len(answers) == 4
    assert all(request.temperature == 0.0 and request.max_new_tokens == 32 for request in policy.requests)
    assert answers[0].prompt == "facts\ncity: Oslo (2024-05-01)\nask: Where?"
    assert [hit.entry.content for hit in answers[2].hits] == ["city: Rome"]


def test_thinking_is_no_answer_and_unknown_abstains():
    items = [("Where?", working_memory("city: Oslo"))]
    (answer,) = PolicyReader(fixed("<think>Oslo?</think>\n unknown ")).answer(items)
    assert answer.text == "unknown" and answer.abstained
    (answer,) = PolicyReader(fixed("  ")).answer(items)
    assert answer.text == "" and not answer.abstained


@given(text=st.lists(st.sampled_from(["Porto", "city", "2024", "punska", "Yes", ".", "3"]), max_size=3).map(" ".join))
def test_what_a_small_policy_answers_stands_in_the_entries_or_is_quoted(text):
    words = set(re.findall(r"\w+", text.lower()))
    items = [("Which city is mine?", working_memory("city: Porto"))]
    (answer,) = default_reader(fixed(text), AgentConfig(prompt="compact")).answer(items)
    is_shown = words <= {"city", "porto", "2024", "05", "01", "yes", "no"} and words
    assert answer.text == (text if is_shown else "Porto") and not answer.abstained
    (free,) = default_reader(fixed(text), AgentConfig(prompt="full")).answer(items)
    assert free.text == text


def test_a_small_policy_takes_its_answer_from_the_best_entries():
    items = [("Which is my home city?", working_memory("home city: Porto", "childhood home city: Faro", "dog: Rex"))]
    for text, right in (("Faro", "Faro"), ("Rex", "Porto"), ("unknown", "unknown")):
        (answer,) = default_reader(fixed(text), AgentConfig(prompt="compact")).answer(items)
        assert answer.text == right and answer.abstained == (text == "unknown")
    for question, contents, right in (
        ("Where?", (), "7"),  # nothing to quote
        ("How many races did I run?", ("race: Rome", "race: Oslo", "dog: Rex"), "2"),
        ("How many bat boxes?", ("bat boxes: 12",), "12"),
        ("How many cats?", ("dog: Rex",), "unknown"),
    ):
        (answer,) = default_reader(fixed("7"), AgentConfig(prompt="compact")).answer(
            [(question, working_memory(*contents))]
        )
        assert answer.text == right and answer.abstained == (right == "unknown")


def test_a_sentence_that_is_kept_for_two_facts_is_read_once():
    kept = working_memory()
    for note in ("city: Porto", "home: Porto"):
        kept.insert("semantic", "I moved to Porto in May", timestamp="2024-05-01", metadata={"note": note})
    (answer,) = default_reader(fixed("Porto"), AgentConfig(prompt="compact")).answer([("Where do I live?", kept)])
    assert len(kept.list()) == 2 and [hit.entry.content for hit in answer.hits] == ["I moved to Porto in May"]
    assert answer.prompt.count("I moved") == 1


def conflicts(text, target, rule="refuse"):
    (answer,) = PolicyReader(fixed(text), ReaderConfig(conflicts=rule)).answer([("Which city is my home?", target)])
    return answer.conflict


def test_two_live_values_in_one_slot_are_a_conflict():
    both = working_memory("city: Oslo", "City : Rome", "pet: cat")
    assert conflicts("Oslo", both) and conflicts("You live in Rome now.", both)
    assert not conflicts("cat", both)  # another slot
    assert not conflicts("Oslo", both, rule="keep")
    assert not conflicts("unknown", both)  # an abstention comes from no slot
    assert not conflicts("Oslo", working_memory("city: Oslo", "CITY: oslo."))  # one value, written twice
    assert not conflicts("Oslo", working_memory("trip: Oslo", "trip: Rome", category="episodic"))  # events add up


def test_without_the_conflict_rule_the_newest_wins():
    target = working_memory("city: Oslo", "City: Rome", "pet: cat")
    policy = fixed("Rome")
    PolicyReader(policy, ReaderConfig(prompt="compact", conflicts="newest")).answer([("Which city?", target)])
    shown = policy.requests[0].messages[0]["content"]
    assert shown == "facts\nCity: Rome (2024-05-02)\npet: cat (2024-05-03)\nask: Which city?"
    (answer,) = ExtractiveReader(ReaderConfig(conflicts="newest")).answer([("Which city is home?", target)])
    assert answer.text == "Rome" and not answer.conflict
    trips = working_memory("trip: Oslo", "trip: Rome", category="episodic")
    (answer,) = PolicyReader(fixed("2"), ReaderConfig(conflicts="newest")).answer([("How many trips?", trips)])
    assert len(answer.hits) == 2  # events add up


def test_the_extractive_floor():
    target = working_memory("city: Oslo", "pet: cat")
    target.insert("episodic", "trip: Rome", timestamp="2024-04-30")
    target.insert("episodic", "trip: Lima", timestamp="2024-05-02")
    target.insert("semantic", "I bought a red bicycle.")
    questions = ["Which city is home?", "How many trips did I take?", "When was the trip to Rome?", "What bicycle?"]
    texts = [answer.text for answer in ExtractiveReader().answer([(question, target) for question in questions])]
    assert texts == ["Oslo", "2", "2024-04-30", "I bought a red bicycle."]
    answers = ExtractiveReader().answer([("Which job do I have?", target), ("How many races?", target)])
    assert all(answer.abstained for answer in answers)


def test_a_small_policy_answers_with_the_sentence_that_holds_its_words():
    sling, memory = "My sling came off, so I can carry you wine", working_memory("sling: blue", "Rome was rainy.")
    memory.insert("semantic", f"Jo: {sling}", timestamp="2024-05-03", metadata={"note": "arm: wine"})
    same = ("2024-05-03", "unknown", "blue", "No")
    for text, right in (("wine", sling), *zip(same, same, strict=True)):
        (answer,) = default_reader(fixed(text), AgentConfig(prompt="compact")).answer([("Which sling?", memory)])
        assert answer.text == right


def test_the_extractive_floor_quotes_sentences():
    dated = ("The gig is on 7 July.", "I saw the dentist yesterday.", "We have 19 chairs.")
    memory = working_memory(*dated)
    memory.insert("semantic", "The cup was won in May")
    for question, right in (
        ("When is the gig?", "The gig is on 7 July."),
        ("When did I see the dentist?", "1 May 2024"),
        ("When did chairs come?", "2024-05-03"),
        ("When was the cup won?", "The cup was won in May"),
        ("How many chairs are there?", "We have 19 chairs."),
        ("Which car do I have?", "unknown"),
    ):
        assert ExtractiveReader().answer([(question, memory)])[0].text == right
    (answer,) = ExtractiveReader().answer([("How old am I?", working_memory("I am 64."))])
    assert answer.text == "I am 64."


def test_the_extractive_floor_takes_no_speaker_for_a_key_and_reads_scripts_without_spaces():
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent("add_all", store)
        agent.read("Ana: The dog's name is Rex.\nBen: I live in Oslo.\nAna: home: Lima")
        agent.read("アナ: 犬の名前はポチです。\nアナ: 仕事は看護師です。")
        agent.read("小明: 我的狗叫旺财。")
        questions = ("What is the name of the dog?", "犬の名前は何ですか?", "仕事は何?", "狗叫什么?", "天気は?")
        answers = [agent.ask(question).text for question in questions]
    dog, *others = answers
    assert dog == "The dog's name is Rex."
    assert others == ["犬の名前はポチです。", "仕事は看護師です。", "我的狗叫旺财。", "unknown"]


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("Where does Ben live?", "unknown"),
        ("Where did Ana live on Friday?", "I live in Porto."),
        ("Where do I live, Ben?", "I live in Porto."),
        ("Where does Cleo live?", "Cleo lives in Rome, I think."),
        ("Where is the user living?", "I live in Porto."),
        ("Where does Anabel live?", "I live in Porto."),
        ("Where does Po live?", "unknown"),
    ],
)
def test_what_somebody_says_of_himself_answers_nothing_about_another(question, expected):
    with MemoryStore.open(":memory:") as store:
        agent = MemoryAgent("add_all", store)
        agent.read("Ana: I live in Porto.")
        if "Cleo" in question:
            agent.read("Eve: Cleo lives in Rome, I think.")
        assert agent.ask(question).text == expected


@pytest.mark.parametrize(
    ("question", "text", "expected"),
    [
        ("犬の名前は何ですか?", "アナ: 大阪に引っ越しました。犬の名前はポチです。よろしく。", "ポチ"),
        ("小明什么时候去上海?", "小明: 我下周三去上海。", "下周三"),
        ("Ann का कुत्ता?", "कुत्ता मोती है।", "मोती है"),
        ("Which Farbe?", "user: the Farbe is dark green", "dark green"),
    ],
)
def test_the_copying_floor_in_any_script(question, text, expected):
    assert copied(question, text, None) == expected


@pytest.mark.parametrize(
    ("question", "choices", "answer"),
    [
        ("小明什么时候去上海?", {"A": "下周五", "B": "下周三", "C": "这周三"}, "(b) 下周三"),
        ("Where does Ana live now?", ["in Rome", "in Porto"], "(b) in Porto"),
        ("When did Ana swim?", {"A": "2 May 2024", "B": "1 May 2024"}, "(b) 1 May 2024"),
        ("Who has moved?", {"A": "Tom", "B": "Ana"}, "(b) Ana"),
        ("How old is Ben?", ["32", "23"], "(b) 23"),
        ("Where does Ben live now?", ["Rome", "York", "New York"], "(c) New York"),
    ],
)
def test_the_copying_floor_takes_an_option(question, choices, answer):
    hits = shown(
        "Ana: I moved to Porto.",
        "Ana: I swam yesterday.",
        "小明: 我下周三去上海。",
        "Ben: I am 23 and my brother is 32. I moved from Rome to New York.",
    )
    asked = Question(id="q", question=question, answers=(answer[:3],), meta={"metric": "choice", "choices": choices})
    text_only = asked.model_copy(update={"meta": {"choices": choices}})
    answers = CopyReader().answer([(asked, RetrievedMemory(hits)), (text_only, RetrievedMemory(hits))])
    assert [reply.text for reply in answers] == [answer, answer[4:]]
    assert score_question(asked, answers[0]) == score_question(asked, answers[1]) == 1


def copied(question: str, text: str, timestamp: str | None) -> str:
    return copy_answer(question, [MemoryEntry("i", "semantic", text, timestamp=timestamp)])


@given(st.text(max_size=300), st.text(max_size=300))
def test_what_is_copied_stands_in_the_passage(question, text):
    assert copied(question, text, None) in text


@given(st.text())
def test_key_value_splits_at_the_first_colon(content):
    pair = key_value(content)
    if pair is not None:
        assert content.index(":") >= len(pair[0].replace(" ", "")) and pair[1] and 1 <= len(pair[0].split()) <= 4
    else:
        key, _, value = content.partition(":")
        assert not value.strip() or len(key.split()) not in (1, 2, 3, 4) or (key[-1:] + value[:2]).isdecimal()


@pytest.mark.parametrize("text", ["[04:57] <mvo> run update-grub", "Lunch at 12:30 with Bo", "火车是7\uff1a30开"])
def test_a_time_separates_no_name(text):
    assert key_value(text) is None and split_label(text) == ("", text)


@pytest.mark.parametrize(
    ("key", "value"), [("电话1", "13800000000"), ("发言人1", "20号见面"), ("用户2", "3个苹果"), ("Agent7", "3 tickets")]
)
def test_a_name_may_end_and_words_begin_with_a_number(key, value):
    assert key_value(f"{key}\uff1a{value}") == (key.lower(), value)
    assert split_label(f"{key}\uff1a{value}") == (key, value)


WORD = st.sampled_from(["oslo", "rome", "red wine", "Oslo", "The Rome", "x"])
ENTRY = st.builds(
    lambda slot, value, category: MemoryEntry("i", category, f"{slot}: {value}"),
    st.sampled_from(["city", "drink"]),
    WORD,
    st.sampled_from(["semantic", "episodic"]),
)


@given(st.lists(ENTRY, max_size=6), st.sampled_from(["city", "drink"]), st.randoms())
def test_conflict_is_more_than_one_normalised_value_whatever_the_order(entries, slot, rng):
    of_slot = [e for e in entries if e.content.startswith(slot)]
    several = len({normalize(e.content.split(":")[1]) for e in of_slot}) > 1
    expected = several and "semantic" in {e.category for e in of_slot}
    assert in_conflict(slot, entries) == expected
    rng.shuffle(entries)
    assert in_conflict(slot, entries) == expected


def test_disputed_counts_statements_about_the_slot():
    assert states_several_values("city", ["Rome", "Oslo"], ["new city: Rome", "city Oslo"])
    assert not states_several_values(
        "city", ["Rome", "Oslo"], ["city: Rome, before that Oslo", "trip: Oslo", "City: rome"]
    )
    assert not states_several_values("city", ["Rome", "Oslo"], ["city: Oslo", "pet: Rome"])


def test_the_slot_is_that_of_the_best_hit_with_the_value():
    hits = [
        Hit(MemoryEntry("a", "semantic", "birthplace: Oslo"), 2),
        Hit(MemoryEntry("b", "semantic", "city: Oslo"), 1),
    ]
    assert answer_slot("oslo", hits) == "birthplace"
    assert (
        answer_slot("Oslo", [Hit(MemoryEntry("c", "semantic", "town: New Oslo"), 3), *hits]) == "birthplace"
    )  # equal wins
    assert answer_slot("Lima", hits) is None


@given(st.text(), st.text())
def test_only_an_empty_text_normalises_to_nothing_and_nothing_equals_it(one, two):
    assert bool(normalize(one)) == bool(one.strip())
    assert is_same(one, two) == is_same(two, one) and not is_same("", one) and not contains(one, " ")
    assert is_same(one, one) == contains(one, one) == bool(one.strip())


def test_a_refusal_is_the_whole_of_a_short_reply():
    replies = json.loads((Path(__file__).parents[1] / "data" / "refusals.json").read_text(encoding="utf-8"))
    assert [text for text in replies["refusals"] if not is_abstention(text)] == []
    assert [text for text in replies["answers"] if is_abstention(text)] == []
    assert not is_abstention("I don't know. " * 20) and not is_abstention("根据" + "没有关于" * 5000)


def shown(*contents: str) -> tuple[Hit, ...]:
    return tuple(
        Hit(MemoryEntry(str(at), "semantic", content, f"2024-05-0{at + 1}"), -at) for at, content in enumerate(contents)
    )


def test_reading_is_apart_from_retrieval():
    """What is read is what is shown: counts too, while a memory that is asked as a whole is counted as a whole."""
    trips = working_memory("trip: Oslo", "trip: Rome", "trip: Lima", category="episodic")
    reader = ExtractiveReader(ReaderConfig(k=2))
    (whole,) = reader.answer([("How many trips?", trips)])
    (part,) = reader.answer([("How many trips?", RetrievedMemory(shown("trip: Oslo", "trip: Rome")))])
    assert (whole.text, part.text) == ("3", "2")
    policy = fixed("Oslo")
    retrieved = RetrievedMemory(shown("a", "b"), "Ana")
    (answer,) = PolicyReader(policy, ReaderConfig(prompt="compact", k=1)).answer([("Where?", retrieved)])
    assert answer.prompt == "facts\ncore: Ana\na (2024-05-01)\nb (2024-05-02)\nask: Where?"
    assert [hit.entry.content for hit in answer.hits] == ["a", "b"]


def test_conflicts_are_looked_for_in_all_that_is_live_where_that_is_known():
    reader, hits = ExtractiveReader(ReaderConfig(conflicts="refuse")), shown("city: Oslo")
    live = [MemoryEntry("x", "semantic", "city: Rome"), hits[0].entry]
    answers = reader.answer(
        [("Which city?", RetrievedMemory(hits)), ("Which city?", RetrievedMemory(hits, live=lambda: live))]
    )
    assert [answer.conflict for answer in answers] == [False, True]
    (answer,) = ExtractiveReader(ReaderConfig(k=1, conflicts="refuse")).answer(
        [("Which city?", working_memory("city: Oslo", "city: Rome"))]
    )
    assert len(answer.hits) == 1 and answer.conflict


def test_the_copying_floor():
    hits = shown("Ana: We swam yesterday. My sister Mara won the silver cup!")
    questions = ["When did Ana swim?", "What did Mara win?", "Who was there?"]
    answers = CopyReader().answer([(question, RetrievedMemory(hits)) for question in questions])
    assert [answer.text for answer in answers][:2] == ["30 April 2024", "the silver cup"]
    (nothing,) = CopyReader().answer([("What?", RetrievedMemory(()))])
    assert nothing.abstained and nothing.text == "unknown"
    assert copied("When was it?", "last year", "2024-05-01T10:00") == "2023"
    assert copied("When was it?", "It was on a Sunday", None) == "Sunday"
    (asked,) = CopyReader().answer([("When did Ana move?", working_memory("Ana moved next week"))])
    assert asked.text == "the week after 1 May 2024"
    told = {
        "It was two weeks ago": "17 April 2024", "three months ago": "February 2024", "a year ago": "2023",
        "last month": "April 2024", "next month": "June 2024", "next year": "2025", "day after tomorrow": "3 May 2024",
        "last Friday": "the friday before 1 May 2024", "on that day": "1 May 2024",
        "last Tues": "the tuesday before 1 May 2024", "this past weekend": "the weekend before 1 May 2024",
        "in three weeks": "22 May 2024", "for two months now": "March 2024", "this month": "May 2024",
        "last summer": "summer 2023", "next winter": "winter 2025", "The race was on 3 March": "3 March 2024",
        "April 12th, it was": "12 April 2024", "Yesterday I heard: May 2, 2022": "2 May 2022", "June 2021": "June 2021",
        "on the 15th": "15 May 2024", "back in 2013": "2013", "30 February or 2 March": "2 March 2024",
        "1 May 2024 Ana: it was in June 2020": "June 2020",
    }  # fmt: skip
    assert {text: copied("When was it?", text, "2024-05-01") for text in told} == told
    assert copied("When was it?", "last month", "2024-01-31") == "December 2023"
    assert copied("When is it?", "It is tomorrow", "9999-12-31") == "31 December 9999"
    assert copied("When is it?", "next month", "9999-12-01") == "1 December 9999"
    assert copied("When was it?", "It was a tree", "2024W01T10") in ("tree", "a tree")
    assert copied("When did Ann swim?", "[3 March 2021] Ann: we swam yesterday", "2024-05-01") == "30 April 2024"
    assert (
        copied("Where do you live?", "Ann: Oslo   ", None) == "Oslo"
        and copied("Who?", "\U0001f600", None) == "\U0001f600"
    )
    assert copied("When is lunch?", "Lunch is at 12:30 on 3 March", "2024-05-01") == "3 March 2024 at 12:30"
    assert copied("When was lunch?", "Lunch is at 12:30 on 3 March", "2024-05-01") == "3 March 2024"


def test_the_copier_follows_the_rule_on_conflicts():
    items = [("What is the city?", working_memory("city: Rome", "city: Oslo"))]
    for rule, answer, conflict in [("keep", None, False), ("refuse", None, True), ("newest", "Oslo", False)]:
        (read,) = CopyReader(ReaderConfig(kind="copy", conflicts=rule)).answer(items)
        assert read.conflict == conflict
        assert answer is None or read.text == answer


CHATS = {
    "German": (
        "Anna: Ich wohne jetzt in Hamburg.",
        "Ben: Mein Hund heißt Bruno.",
        "Anna: Ich esse kein Fleisch.",
        "Anna: Ich koche als Azubi.",
    ),
    "Spanish": ("Ana: Vivo en Valencia.", "Luis: Mi perro es Toby, el mejor.", "Luis: La boda es el 20 de septiembre."),
    "French": ("Claire: J'ai adopté un chiot.", "Claire: Le mariage est le 12 juin.", "Hugo: J'étudie la médecine."),
    "Italian": ("Giulia: Abbiamo prenotato il volo.", "Marco: Il mio gatto è Micio.", "Giulia: Suono il violino."),
    "Portuguese": ("Rita: Moro em Coimbra.", "Rui: O meu gato é o Pompom.", "Rita: Trabalho num banco."),
    "Turkish": ("Deniz: Ben Ankara'da oturuyorum, evimiz küçük.", "Ali: Kedimin ismi Pamuk.", "Deniz: Çok yorgunum."),
    "Dutch": ("Daan: Ik werk bij de gemeente.", "Sanne: Onze kat heet Moos."),
    "Russian": ("Анна: Я работаю в школе.", "Борис: Я учу испанский.", "Анна: Мы получили ключи."),
    "Japanese": ("美咲: 先週、京都へ引っ越しました。", "健太: うちの犬はポチです。", "美咲: りんごがすき。"),
    "Chinese": ("小美: 我三月搬到了成都。", "阿强: 我家的猫叫菲菲。"),
    "Korean": ("지우: 나는 부산으로 이사했어.", "민호: 나는 병원에서 일해."),
}


def chat(language: str) -> RetrievedMemory:
    lines = [(line.split(":")[0], line) for line in CHATS[language]]
    return RetrievedMemory(
        tuple(
            Hit(MemoryEntry(f"e#{at}", "episodic", line, timestamp="2026-05-17T09:00", speaker=name), 1.0)
            for at, (name, line) in enumerate(lines)
        )
    )


@pytest.mark.parametrize(
    ("language", "question", "answer"),
    [
        ("German", "Wo wohnt Anna?", "Ich wohne jetzt in Hamburg."),
        ("German", "Wie heißt Bens Hund?", "Mein Hund heißt Bruno."),
        ("German", "Isst Ben Fleisch?", "unknown"),
        ("German", "Wie alt ist Anna?", "unknown"),
        ("German", "Wer ist Claudia?", "unknown"),
        ("Spanish", "¿Dónde vive Ana?", "Vivo en Valencia."),
        ("Spanish", "¿Come carne Luis?", "unknown"),
        ("Spanish", "¿Quién es Claudia?", "unknown"),
        ("French", "Qui est Bastien ?", "unknown"),
        ("French", "Qu'est-ce que Hugo étudie ?", "J'étudie la médecine."),
        ("French", "Quand Claire a-t-elle adopté le chiot ?", "J'ai adopté un chiot. (2026-05-17)"),
        ("Italian", "Quando hanno prenotato il volo?", "Abbiamo prenotato il volo. (2026-05-17)"),
        ("Italian", "Che strumento suona Giulia?", "Suono il violino."),
        ("Italian", "Marco fuma?", "unknown"),
        ("Portuguese", "Onde mora a Rita?", "Moro em Coimbra."),
        ("Portuguese", "Quem é o Gonçalo?", "unknown"),
        ("Turkish", "Deniz da nerede oturur?", "Ben Ankara'da oturuyorum, evimiz küçük."),
        ("Dutch", "Waar werkt Daan?", "Ik werk bij de gemeente."),
        ("Dutch", "Welke auto heeft Daan?", "unknown"),
        ("Russian", "Где работает Анна?", "Я работаю в школе."),
        ("Russian", "Ест ли Борис мясо?", "unknown"),
        ("Russian", "Когда получили ключи?", "Мы получили ключи. (2026-05-17)"),
        ("Japanese", "健太の犬の名前は何ですか?", "うちの犬はポチです。"),
        ("Japanese", "美咲はどこで働いていますか?", "unknown"),
        ("Japanese", "美咲はいつ結婚しますか?", "unknown"),
        ("Japanese", "りんごはすき?", "りんごがすき。"),
        ("Chinese", "阿强的猫叫什么名字?", "我家的猫叫菲菲。"),
        ("Chinese", "阿强开什么车?", "unknown"),
        ("Korean", "지우는 어디로 이사했어?", "나는 부산으로 이사했어."),
        ("Korean", "민호는 무슨 차를 타?", "unknown"),
    ],
)
def test_other_languages_have_function_words_forms_and_days(language, question, answer):
    (read,) = QuotingReader().answer([(question, chat(language))])
    assert (read.text, read.abstained) == (answer, answer == "unknown")


def test_what_nothing_answers_is_left_open_in_other_languages():
    memory = working_memory("Ich bin Lehrer.", "Unser Auto ist alt.")
    questions = ["Wer ist das?", "Was kostet das Auto?"]
    assert all(answer.abstained for answer in QuotingReader().answer([(question, memory) for question in questions]))
