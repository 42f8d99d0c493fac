"""Chat messages become chunks of turns; errors name message and field."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from memalpha import load_tasks
from memalpha.cli.options import read_chunks
from memalpha.errors import DataError
from memalpha.tasks.formats.messages import chunk_messages, is_message_file, load_messages

CHAT = [
    {"role": "system", "content": "You are kind.", "timestamp": "2024-05-01"},
    {"role": "user", "content": "I moved to Porto.", "name": "Ana", "timestamp": "2024-05-01T10:00"},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "c"}]},
    {"role": "tool", "content": "18 degrees", "tool_call_id": "c"},
    {"role": "assistant", "content": "It is warm there."},
    {"role": "user", "content": "My dog is called Rex.", "timestamp": "2024-05-02T09:00"},
]


def turns(messages, **options):
    return [
        (chunk.timestamp, [(turn.speaker, turn.text) for turn in chunk.turns])
        for chunk in chunk_messages(messages, **options)
    ]


def test_users_and_assistants_are_read_a_chunk_a_day():
    assert turns(CHAT) == [
        ("2024-05-01T10:00", [("Ana", "I moved to Porto."), ("assistant", "It is warm there.")]),
        ("2024-05-02T09:00", [("user", "My dog is called Rex.")]),
    ]
    assert [chunk.index for chunk in chunk_messages(CHAT, first_index=3)] == [3, 4]


def test_a_message_without_words_gives_no_chunk_its_time():
    said = [("10:00", ""), ("10:01", "I moved."), ("10:02", ""), ("10:03", "To Porto."), (None, "In May.")]
    messages = [{"role": "user", "content": text, "timestamp": time and f"2024-05-01T{time}"} for time, text in said]
    words = [("user", "I moved."), ("user", "To Porto."), ("user", "In May.")]
    assert turns(messages) == turns(messages, timestamp="2024-04-30") == [("2024-05-01T10:01", words)]
    assert turns([messages[0], messages[4]]) == [("2024-05-01T10:00", words[2:])]


def test_content_blocks_of_both_apis():
    openai = [{"type": "input_text", "text": "Look:"}, {"type": "input_image", "image_url": "data:"}]
    anthropic = [
        {"type": "tool_result", "tool_use_id": "t", "content": "secret"},
        {"type": "text", "text": "I like tea.", "cache_control": {"type": "ephemeral"}},
    ]
    answer = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "Noted."}]
    messages = [
        {"role": "user", "content": openai},
        {"role": "user", "content": anthropic},
        {"role": "assistant", "content": answer, "id": "m", "type": "message", "stop_reason": "end_turn"},
    ]
    assert turns(messages, timestamp="2024-05-01") == [
        ("2024-05-01", [("user", "Look:"), ("user", "I like tea."), ("assistant", "Noted.")])
    ]
    assert turns([{"role": "assistant", "content": None, "tool_calls": []}]) == []


def test_long_messages_are_split_within_the_size():
    words = " ".join(f"word{number}" for number in range(200))
    chunks = chunk_messages([{"role": "user", "content": words}] * 2, size=400)
    assert len(chunks) > 4 and all(len(chunk.render()) <= 400 for chunk in chunks)
    assert " ".join(turn.text for chunk in chunks for turn in chunk.turns) == f"{words} {words}"


USER = {"role": "user", "content": "x"}
WRONG = {
    r"messages\[1\]: a message is an object": "hello",
    r"messages\[1\]\.text: no field": {"role": "user", "text": "x"},
    r"messages\[1\]\.role: is missing": {"content": "x"},
    r"messages\[1\]\.role: is 'human'": {"role": "human", "content": "x"},
    r"messages\[1\]\.content: is missing": {"role": "user"},
    r"messages\[1\]\.content: a text or a list": {"role": "user", "content": 5},
    r"messages\[1\]\.content\[0\]\.type: is missing": {"role": "user", "content": [{"text": "x"}]},
    r"messages\[1\]\.content\[0\]\.type: 'txt' is unknown": {"role": "user", "content": [{"type": "txt"}]},
    r"messages\[1\]\.content\[0\]\.type: \['txt'\] is unknown": {"role": "user", "content": [{"type": ["txt"]}]},
    r"messages\[1\]\.content\[1\]\.text: a text is needed": {"role": "user", "content": ["a", {"type": "text"}]},
    r"messages\[1\]\.timestamp: 'May' is no ISO": {**USER, "timestamp": "May"},
    r"messages\[1\]\.timestamp: 5 is no ISO": {**USER, "timestamp": 5},
    r"messages\[1\]\.name: a name": {**USER, "name": " "},
    r"messages\[1\]\.name: 'Assistant' is a role": {**USER, "name": "Assistant"},
}


@pytest.mark.parametrize(("error", "message"), WRONG.items())
def test_errors_name_message_and_field(error, message):
    with pytest.raises(DataError, match=error):
        chunk_messages([USER, message])


TIMES = {
    "3 March 2024, 14:05": "2024-03-03T14:05",
    "Sunday, March 3, 2024 at 2:05\u202fPM": "2024-03-03T14:05",
    "2024/03/03 2:05 PM": "2024-03-03T14:05",
    "03.03.2024 14:05": "2024-03-03T14:05",
    "2024-03-03 14:05:09 UTC": "2024-03-03T14:05:09",
    "Sun, 03 Mar 2024 14:05:00 +0100": "2024-03-03T14:05:00+01:00",
    "1709474700": "2024-03-03T14:05:00",
    1703031792000: "2023-12-20T00:23:12",
    1703031793000.0: "2023-12-20T00:23:13",
    "20240303": "20240303",
    "2024-03-03 14:05": "2024-03-03 14:05",
    " ": None,
}


@pytest.mark.parametrize(("time", "iso"), TIMES.items())
def test_times_that_can_be_read_one_way_are_read(tmp_path: Path, time, iso):
    for messages, own in (([USER | {"timestamp": time}], None), ([USER | {"created_at": time}], None), ([USER], time)):
        (tmp_path / "chat.json").write_text(json.dumps({"messages": messages, "timestamp": own}))
        assert [chunk.timestamp for chunk in load_messages(tmp_path / "chat.json")] == [iso]
    for open_date in ("03/04/2024 14:05", "0171234567", 5551234567, 5, True):
        (tmp_path / "chat.json").write_text(json.dumps({"messages": [USER], "timestamp": open_date}))
        with pytest.raises(DataError, match=rf"chat\.json: timestamp: '?{open_date}'? is no ISO 8601"):
            load_messages(tmp_path / "chat.json")


def test_files_of_messages(tmp_path: Path):
    lines, value, wrapped = tmp_path / "chat.jsonl", tmp_path / "chat.json", tmp_path / "wrapped.json"
    lines.write_text("\n\n".join(map(json.dumps, CHAT)), encoding="utf-8")
    value.write_text(json.dumps(CHAT, indent=1), encoding="utf-8")
    wrapped.write_text(json.dumps({"messages": CHAT}), encoding="utf-8")
    assert is_message_file(lines) and load_messages(lines) == load_messages(value) == load_messages(wrapped)
    assert load_messages(value) == chunk_messages(CHAT)
    lines.write_text(json.dumps(USER) + "\n" + json.dumps({"role": "user"}), encoding="utf-8")
    with pytest.raises(DataError, match=r"chat\.jsonl:2\.content: is missing"):
        load_messages(lines)
    value.write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"chat\.json: a list of messages is needed"):
        load_messages(value)
    assert not is_message_file(tmp_path / "missing.jsonl") and not is_message_file(value)


def telegram(*messages, **fields):
    return {"name": "Ana", "type": "personal_chat", "id": 7, "messages": list(messages), **fields}


def post(text, **fields):
    return {"id": 1, "type": "message", "date": "2024-05-01T10:00:00", "from": "Ana", "text": text, **fields}


def test_a_conversation_a_line(tmp_path: Path):
    file = tmp_path / "chats.jsonl"
    lines = [{"messages": [{"role": "user", "content": f"I live in {city}."}]} for city in ("Porto", "Braga")]
    file.write_text("\n\n".join(map(json.dumps, lines)))
    tasks = load_tasks(file)
    assert [(task.id, task.chunks[0].turns[0].text) for task in tasks] == [
        ("chats-1", "I live in Porto."),
        ("chats-3", "I live in Braga."),
    ]
    file.write_text(json.dumps(lines[0]) + '\n{"messages": [{"role": "usr", "content": "Hi"}]}')
    with pytest.raises(DataError, match=r"chats\.jsonl:2: messages\[0\]\.role: is 'usr'"):
        load_tasks(file)
    file.write_text(json.dumps(lines[0]) + '\n{"role": "user", "content": "Hi"}')
    with pytest.raises(DataError, match=r"chats\.jsonl:2: field 'messages' is missing"):
        load_tasks(file)


SHAREGPT = [{"from": "system", "value": "Be kind."}, {"from": "human", "value": "x"}, {"from": "gpt", "value": "y"}]


@pytest.mark.parametrize(
    "value",
    [
        [[USER], [USER]],
        [{"conversation": [USER]}, {"dialog": [USER]}],
        [{"messages": [USER], "id": 7, "timestamp": "2024-05-01"}, [USER]],
        {"version": 1, "data": {"dialogues": [[USER], [USER]]}},
        [{"conversations": SHAREGPT}, {"conversations": SHAREGPT}],
    ],
)
def test_a_file_of_conversations_has_a_task_each(tmp_path: Path, value, monkeypatch):
    (tmp_path / "all.json").write_text(json.dumps(value))
    tasks = load_tasks(tmp_path / "all.json")
    assert [task.id for task in tasks] == ["7" if "7" in json.dumps(value) else "all-1", "all-2"]
    assert all(task.chunks[0].turns[0].text == "x" and task.chunks[0].turns[0].speaker == "user" for task in tasks)
    (tmp_path / "all.jsonl").write_text(json.dumps(value))
    if isinstance(value, list):
        assert [task.chunks for task in load_tasks(tmp_path / "all.jsonl")] == [task.chunks for task in tasks]
        (tmp_path / "all.jsonl").write_text("\n".join(map(json.dumps, value)))
        assert [task.chunks for task in load_tasks(tmp_path / "all.jsonl")] == [task.chunks for task in tasks]
    for name in ("all.json", "all.jsonl"):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((tmp_path / name).read_bytes())))
        assert [chunk.turns for chunk in read_chunks(Path("-"), None)] == [task.chunks[0].turns for task in tasks]


@pytest.mark.parametrize(
    "value",
    [
        {"data": [{"role": "admin", "name": "Ana"}]},
        {"data": [{"id": 1, "content": "A post."}]},
        [{"from": "Ana", "to": "Ben", "value": 3}],
        [[], [USER]],
        ["a", "b"],
    ],
)
def test_other_json_on_stdin_is_a_text(value, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(json.dumps(value).encode())))
    assert [chunk.text for chunk in read_chunks(Path("-"), None)] == [json.dumps(value)]


def test_rows_of_a_dataset_may_be_conversations():
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list([{"messages": [USER]}, {"messages": [USER | {"name": "Ana"}]}])
    assert [(task.id, task.chunks[0].turns[0].speaker) for task in load_tasks(rows)] == [
        ("row-0", "user"),
        ("row-1", "Ana"),
    ]


def test_chats_of_telegram_and_discord(tmp_path):
    file = tmp_path / "result.json"
    link = ["see ", {"type": "link", "text": "http://x"}]
    chat = telegram(post(link), post("", photo="p.jpg"), post("", type="service"), post("Yes", **{"from": None}))
    chat["messages"].append(post("News", author="The editor", forwarded_from="Bo"))
    file.write_text(json.dumps(chat))
    [task] = load_tasks(file)
    assert [(turn.speaker, turn.text) for turn in task.chunks[0].turns] == [
        ("Ana", "see http://x"), ("Deleted account", "Yes"), ("Ana", "[forwarded from Bo] News")
    ]  # fmt: skip
    assert task.chunks[0].timestamp == "2024-05-01T10:00:00"
    assert task.meta == {"source": "telegram", "left_out": {"notices": 1, "media": 1}}
    chats = {"chats": {"list": [chat, telegram(post(""), id=9)]}, "left_chats": {"list": [telegram(post("Hi"), id=8)]}}
    file.write_text(json.dumps(chats))
    assert [task.id for task in load_tasks(file)] == ["Ana-7", "Ana-8"]
    said = {"type": "Default", "timestamp": "2024-05-01T10:00:00+00:00", "content": "hi", "author": {"name": "bo"}}
    file.write_text(json.dumps({"guild": {}, "channel": {}, "messages": [said, {**said, "type": "GuildMemberJoin"}]}))
    [task] = load_tasks(file)
    assert [turn.speaker for turn in task.chunks[0].turns] == ["bo"] and task.meta["source"] == "discord"


def test_people_of_one_name_are_told_apart_by_their_ids(tmp_path):
    def said(id: str | None, name: str | None = "Ana", **fields):
        return post("hi", from_id=id, **{"from": name}, **fields)

    file = tmp_path / "result.json"
    mine = telegram(said("u1"), said("u2"), said("u1", "Anna"), said("u2"), said("u3", None), said("u4", None))
    other = telegram(said("u2"), said("u5", "Bo", forwarded_from="Ana", forwarded_from_id="u2"), said(None), id=8)
    file.write_text(json.dumps({"chats": {"list": [mine, other]}}))
    first, second = ([(turn.speaker, turn.text) for turn in task.chunks[0].turns] for task in load_tasks(file))
    assert [speaker for speaker, _ in first] == [
        *("Ana", "Ana (2)", "Anna", "Ana (2)", "Deleted account", "Deleted account (2)")
    ]
    assert second == [("Ana (2)", "hi"), ("Bo", "[forwarded from Ana (2)] hi"), ("Ana", "hi")]
    time = "2024-05-01T10:00:00+00:00"
    messages = [
        {"type": "Default", "timestamp": time, "content": "hi", "author": {"id": id, "name": id, "nickname": "bo"}}
        for id in ("1", "2", "1")
    ]
    file.write_text(json.dumps({"guild": {}, "channel": {}, "messages": messages}))
    assert [turn.speaker for turn in load_tasks(file)[0].chunks[0].turns] == ["bo", "bo (2)", "bo"]


@pytest.mark.parametrize(
    ("origin", "text"),
    [
        ("Bob \ud83d", "[forwarded from Bob \ufffd] hi"),
        ("Bob\0", "[forwarded from Bob\ufffd] hi"),
        ("Bob\nEve: pay", "[forwarded from Bob Eve: pay] hi"),
    ],
)
def test_a_forwarded_name_is_one_line_of_fit_characters(tmp_path, origin, text):
    (tmp_path / "a.json").write_text(json.dumps(telegram(post("hi", forwarded_from=origin, **{"from": "Ana \ud83d"}))))
    [turn] = load_tasks(tmp_path / "a.json")[0].chunks[0].turns
    assert (turn.speaker, turn.text) == ("Ana \ufffd", text)


@pytest.mark.parametrize("left", [None, [], {}, {"list": [telegram(post("hi"))]}])
def test_chats_that_were_left_may_be_none_or_listed_twice(tmp_path, left):
    (tmp_path / "a.json").write_text(json.dumps({"chats": {"list": [telegram(post("hi"))]}, "left_chats": left}))
    assert [task.id for task in load_tasks(tmp_path / "a.json")] == ["Ana-7"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"role": "user", "type": "message", "ts": "1", "content": "hi"}], r"messages\[0\]\.ts: no field"),
        (telegram(post("hi"), 7), r"messages\[1\]: a message is an object"),
        (telegram(post([{"type": "bold"}])), r"messages\[0\]: field 'text' is missing"),
        (telegram(post("hi", date=5)), r"messages\[0\]\.timestamp: 5 is no ISO 8601"),
        (telegram(post("")), "no message has words"),
        (telegram(), "no message has words"),
        ([{"type": "message", "bot_id": "B1", "text": "hi", "ts": "1355517523.0"}], "Slack export.*write messages in"),
        (
            {"messages": [{"role": "user", "content": "hi", "created_date": "soon"}]},
            "created_date: no field of a message",
        ),
        (
            {"messages": [{"creator": {"name": "Ana"}, "created_date": "soon", "text": "hi"}]},
            "'soon' is no date in a known",
        ),
        (
            {"participants": [], "messages": [{"sender_name": "Ana", "content": "hi"}], "title": "Ana"},
            r"messages\[0\]: field 'timestamp_ms' is missing",
        ),
        (
            {"participants": [], "messages": [{"sender_name": "Ana", "content": "hi", "timestamp_ms": 10**400}]},
            r"messages\[0\]\.timestamp_ms: 10+ is no time",
        ),
        (
            [{"uuid": "a", "created_at": "9999-12-31T23:59:59-10:00", "chat_messages": []}],
            "is no ISO 8601 time",
        ),
        (
            [{"turns": [{"from": "human", "value": "hi"}]}],
            r"row 0: no task, for it has no 'chunks': .* or messages in a \.json",
        ),
        ({"data": [[USER]], "qa": [{"q": "Who?"}]}, r"result\.json\.qa: is not read beside conversations"),
        ([[USER], []], r"result\.json\[1\]: messages: none has words"),
        ([[USER], {"a": 1}], r"result\.json\[1\]: field 'messages' is missing"),
        ([[USER], [{"from": "moderator", "value": "hi"}]], r"\[1\]: messages\[0\]\.role: is 'moderator'"),
        ([[USER, {"from": {"name": "Ana"}, "value": "hi"}]], r"messages\[1\]\.role: is {'name': 'Ana'}"),
        ({"timestamp": "2024-05-01", "data": [[USER], [USER]]}, r"result\.json\.timestamp: is not read beside"),
    ],
)
def test_an_export_that_cannot_be_read_says_why(tmp_path, value, says):
    file = tmp_path / "result.json"
    file.write_text(json.dumps(value))
    with pytest.raises(DataError, match=says):
        load_tasks(file)


def test_a_conversation_a_line_may_have_an_id_and_a_time_and_no_other_field(tmp_path: Path):
    line = {"messages": [{"role": "user", "content": "Hi"}], "id": "x", "timestamp": "2024-05-01"}
    (tmp_path / "chats.ndjson").write_text(f"{json.dumps(line)}\n{json.dumps(line | {'id': 'y'})}\n")
    tasks = load_tasks(tmp_path / "chats.ndjson")
    assert [(task.id, task.chunks[0].timestamp) for task in tasks] == [("x", "2024-05-01"), ("y", "2024-05-01")]
    (tmp_path / "more.jsonl").write_text(json.dumps(line | {"tools": []}))
    with pytest.raises(DataError, match=r"more\.jsonl:1\.tools: no field of a conversation .*: take it out"):
        load_tasks(tmp_path / "more.jsonl")
    for changed, problem in (
        ({}, "id: task 'x' is at .*:1 already"),
        ({"id": "y", "timestamp": "soon"}, "timestamp: 'soon' is no ISO 8601"),
        ({"id": ""}, "id: empty"),
        ({"id": "y", "messages": []}, "messages: none has words"),
    ):
        (tmp_path / "faulty.jsonl").write_text(f"{json.dumps(line)}\n{json.dumps(line | changed)}")
        with pytest.raises(DataError, match=rf"faulty\.jsonl:2: {problem}"):
            load_tasks(tmp_path / "faulty.jsonl")
    asked = line | {"qa": [{"q": "Who?", "a": "Ana"}]}
    for name, says in (("asked.json", "qa: questions beside messages are not"), ("asked.jsonl", "1.qa: .* questions,")):
        (tmp_path / name).write_text(json.dumps(asked))
        with pytest.raises(DataError, match=rf"{name}:.?{says}.* write a task with chunks"):
            load_tasks(tmp_path / name)
    (tmp_path / "dated.json").write_text(json.dumps(line))
    assert load_tasks(tmp_path / "dated.json")[0].chunks[0].timestamp == "2024-05-01"
    own = {"title": "x", "participants": ["a"], "messages": line["messages"], "polls": [{"question": "Pizza?"}]}
    (tmp_path / "own.json").write_text(json.dumps(own))
    assert load_tasks(tmp_path / "own.json")[0].chunks[0].turns[0].text == "Hi"  # no export of Instagram


def said_in(path: Path):
    [task] = load_tasks(path)
    return task, [(chunk.timestamp, turn.speaker, turn.text) for chunk in task.chunks for turn in chunk.turns]


def test_a_chat_of_messenger_is_read_by_time_with_its_letters_mended(tmp_path):
    def sent(seconds, text=None, name="J\u00c3\u00b8rn", **fields):
        return {"sender_name": name, "timestamp_ms": 1_714_746_660_000 + seconds * 1000, "content": text, **fields}

    messages = [
        sent(9, "Reacted \u00e2\u009d\u00a4 to your message "),
        sent(8, "Ana sent an attachment.", share={"link": "http://x"}),
        sent(5, "The call ended.", call_duration=3),
        sent(4, None, photos=[{"uri": "a.jpg"}]),
        sent(3, "sm\u00c3\u00b8r?", is_unsent=True),
        sent(2, "\u00c3\u0085 ja \u00f0\u009f\u0098\u0080", photos=[{"uri": "b.jpg"}]),
        sent(1, "Já?", "Ana"),
        sent(1, "Cafe", ""),
    ]
    file = tmp_path / "message_1.json"
    file.write_text(json.dumps({"participants": [{"name": "Ana"}], "messages": messages, "title": "Ana"}))
    task, turns = said_in(file)
    time = "2024-05-03T14:31:01"
    assert turns == [(time, "unknown", "Cafe"), (time, "Ana", "Já?"), (time, "Jørn", "Å ja 😀")]
    assert task.meta["source"] == "messenger"
    assert task.meta["left_out"] == {"media": 3, "deleted messages": 1, "notices": 2}


def test_an_encrypted_chat_of_messenger(tmp_path):
    def sent(seconds, text, **fields):
        return {"senderName": "Bo", "timestamp": 1_714_746_660_000 + seconds * 1000, "text": text, **fields}

    messages = [sent(2, "", media=[{"uri": "a.jpg"}], type="media"), sent(1, "Já?", media=[], isUnsent=False)]
    chat = {"participants": ["Ana", "Bo"], "threadName": "Bo_1", "messages": [*messages, sent(0, "x", isUnsent=True)]}
    (tmp_path / "Bo_1.json").write_text(json.dumps(chat))
    task, turns = said_in(tmp_path / "Bo_1.json")
    assert turns == [("2024-05-03T14:31:01", "Bo", "Já?")]
    assert task.meta == {"source": "messenger", "left_out": {"media": 1, "deleted messages": 1}}


def test_a_chat_of_google(tmp_path):
    def sent(text, email, date="Friday, May 3, 2024 at 2:31:05\u202fPM UTC", **fields):
        return {"creator": {"name": "Ana", "email": email}, "created_date": date, "text": text, **fields}

    messages = [
        sent("Hi", "a@x.org"),
        sent("Ho", "b@x.org", attached_files=[{}]),
        {"created_date": "Friday, May 3, 2024 at 2:32:05\u202fPM UTC", "message_state": "DELETED"},
        sent("Ha", "a@x.org", "Saturday, 4 May 2024 at 14:31:05 UTC"),
    ]
    (tmp_path / "messages.json").write_text(json.dumps({"messages": messages}))
    task, turns = said_in(tmp_path / "messages.json")
    time = "2024-05-03T14:31:05"
    assert turns == [(time, "Ana", "Hi"), (time, "Ana (b@x.org)", "Ho"), ("2024-05-04T14:31:05", "Ana", "Ha")]
    assert task.meta == {"source": "google-chat", "left_out": {"media": 1, "deleted messages": 1}}


def test_a_channel_of_slack_is_a_day_or_its_folder(tmp_path):
    def sent(text, user, seconds=0, **fields):
        ts = f"{1_714_746_665 + seconds}.000200"
        return {"type": "message", "text": text, "user": user, "ts": ts, **fields}

    profile = {"display_name": "", "real_name": "Ana"}
    text = "Ask <@U2> &amp; <!here> in <#C1|trips> by <http://x|page> <@U9>"
    first = [
        sent("<@U2> has joined", "U2", subtype="channel_join"),
        sent(text, "U1", user_profile=profile, files=[{}]),
        sent("Yes", "U2", user_profile=profile),
    ]
    bot = {"type": "message", "subtype": "bot_message", "text": "Beep", "ts": "1714833065.0", "username": "bot"}
    github = bot | {"username": None, "bot_profile": {"name": "GitHub"}}
    second = [sent("No", "U2", 86_400), github, bot, sent("Hm", "U3", 86_400), sent("", "U3", attachments=[{}])]
    folder = tmp_path / "trips"
    folder.mkdir()
    (folder / "2024-05-03.json").write_text(json.dumps(first))
    (folder / "2024-05-04.json").write_text(json.dumps(second))
    task, turns = said_in(folder)
    times, words = ("2024-05-03T14:31:05", "2024-05-04T14:31:05"), "Ask @Ana (2) & @here in #trips by page @U9"
    assert turns == [
        *((times[0], "Ana", words), (times[0], "Ana (2)", "Yes")),
        *((times[1], "Ana (2)", "No"), (times[1], "GitHub", "Beep"), (times[1], "bot", "Beep"), (times[1], "U3", "Hm")),
    ]
    left_out = {"media": 1, "notices": 1, "empty messages": 1}
    assert (task.id, task.meta) == ("trips", {"source": "slack", "left_out": left_out})
    assert task.chunks[1].turns[0].id == "1.0"
    assert said_in(folder / "2024-05-03.json")[1] == turns[:2]
    (folder / "2024-05-05.json").write_text('[{"role": "user", "content": "Hi"}]')
    (folder / "2024-05-03.json").unlink()
    with pytest.raises(DataError, match="a Slack export without profiles"):
        load_tasks(folder)


def test_a_workspace_of_slack_is_a_task_for_each_channel_with_its_users_names(tmp_path):
    users = [{"id": f"U{n}", "name": "ana.s", "profile": {"real_name": "Ana", "display_name": ""}} for n in (1, 2)]
    (tmp_path / "users.json").write_text(json.dumps(users))
    (tmp_path / "channels.json").write_text("[]")
    for channel, user in (("trips", "U2"), ("work", "U1"), ("empty", "U3")):
        (tmp_path / channel).mkdir()
        message = {"type": "message", "text": "Ask <@U1>", "user": user, "ts": "1714746665.000200"}
        (tmp_path / channel / "2024-05-03.json").write_text(json.dumps([message] if user != "U3" else []))
    said = [(task.id, *task.chunks[0].turns) for task in load_tasks(tmp_path)]
    assert [(id, turn.speaker, turn.text) for id, turn in said] == [
        ("trips", "Ana (2)", "Ask @Ana"),
        ("work", "Ana", "Ask @Ana"),
    ]
    assert said_in(tmp_path / "trips")[1] == [("2024-05-03T14:31:05", "Ana (2)", "Ask @Ana")]
    (tmp_path / "trips" / "canvas.json").write_text("[]")
    (tmp_path / "trips").rename(tmp_path / "mpdm-ana.s")  # names of people hold dots
    (tmp_path / "work").rename(tmp_path / "mpdm-ana.t")
    tasks = load_tasks(tmp_path)
    assert [task.id for task in tasks] == ["mpdm-ana.s", "mpdm-ana.t"]
    assert [task.meta.get("left_out") for task in tasks] == [{"other files": 1}, None]


def test_a_chat_has_nothing_to_do_with_the_file_beside_its_folder(tmp_path):
    (tmp_path / "users.json").write_text("id,name")
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "a.txt").write_text("24/05/2024, 21:05 - Ana: hi\n")
    assert [task.id for task in load_tasks(tmp_path / "chats")] == ["a"]
