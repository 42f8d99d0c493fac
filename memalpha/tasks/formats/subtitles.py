"""Subtitles and transcripts of meetings: words with a time from the beginning, and often with a speaker.

WebVTT (`.vtt`, of Zoom, Teams, YouTube) and SubRip (`.srt`) hold cues. A speaker is a voice tag (`<v Ana>`) or, where
most cues have one, a label (`Ana: text`). Texts hold heads with the name and the time on a line of its own: `[Ana]
10:15:30` (Zoom), `Ana  0:05` (Teams, Otter). The chat of a Zoom meeting has `10:15:30 From Ana to Everyone: text`.

Cues of a speaker are joined up to the end of a sentence. The times are left out, since none has a day.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator

_CLOCK = r"(?:\d+:)?\d{1,2}:\d{2}"
_INSTANT = r"(?:\d+:)?\d{1,2}:\d{1,2}[,.]\d{1,3}"  # Teams writes 0:0:2.32, too
_CUE = re.compile(rf"^[ \t]*{_INSTANT} +--> +{_INSTANT}.*\n?", re.MULTILINE)
_START = re.compile(rf"\s*(?:WEBVTT\b|\d+ *\n{_CUE.pattern})", re.MULTILINE)
_VOICE = re.compile(r"<v(?:\.\S*)? +([^<>\s][^<>\n]*)>")
_TAG = re.compile(
    r"</?(?:[abcipsquv]|big|br|center|del|div|em|font|ins|lang|rt|ruby|small|span|strike|strong|su[bp]|tt)"
    r"(?:\.[^<>]*| [^<>=]*=[^<>]*|\s*/?)>|<(?:v|lang) [^<>]*>|"
    r"<\d[\d:.]*>|\{\\[^{}]*\}",
    re.IGNORECASE,
)
_LABEL = re.compile(r"([^\s:][^:\n]{0,60}): +(?=\S)")
_HEADS = tuple(
    re.compile(form)
    for form in (
        r"\[(.{1,80})\] \d+:\d{2}:\d{2}[ \t]*$",
        rf"(\S.{{0,60}}?) {{2,}}{_CLOCK}[ \t]*$",
        r"\d+:\d{2}:\d{2}[ \t]+(?:From|Von|De) +(\S.{0,80}?)(?: +(?:to|an|a|à) +\S.{0,80}?)? ?:(?: |$)",
    )
)
_TIMETABLE = re.compile(r"[^\[\d].* (?!00?:)\S+ *")
"""First head of a text that begins later, such as `Lunch  12:30`."""
_SENTENCE_END = re.compile("[.!?\u2026\u3002\uff01\uff1f][\"')\\]\u201d\u300d]*$")
_SPEECHES_PER_SILENT = 10  # heads of a transcript for one without words, at least
_LONGEST = 400  # characters of joined cues without the end of a sentence

Words = tuple[str, str]
"""Speaker, or "", and words."""


def read_subtitles(text: str) -> list[Words] | None:
    """Return what is said in subtitles or the transcript of a meeting; None for another text."""
    if _START.match(text) and _CUE.search(text):
        return list(_join(_read_cues(text)))
    lines = text.strip().split("\n")
    for head in _HEADS:
        if not head.match(lines[0]) or _TIMETABLE.fullmatch(lines[0]):
            continue
        speeches: list[tuple[str, list[str]]] = []
        for line in lines:
            if (match := head.match(line)) is not None:
                speeches.append((match[1].strip(), [line[match.end() :].strip()]))
            else:
                speeches[-1][1].append(line.strip())
        words = [(speaker, "\n".join(spoken).strip()) for speaker, spoken in speeches]
        silent = sum(not text for _, text in words)  # as in a list of songs or of times
        if len(words) > 1 and silent <= len(words) // _SPEECHES_PER_SILENT:
            return words
    return None


def _read_cues(text: str) -> Iterator[Words]:
    """Yield speaker and words of the cues."""
    is_vtt, is_rolling = text.lstrip().startswith("WEBVTT"), "<c>" in text
    pieces = _CUE.split(text)[1:]
    cues: list[Words] = []
    last_line = ""
    for number, piece in enumerate(pieces, 1):
        words = piece.strip("\n")
        if is_vtt:  # notes and styles stand behind a blank line
            words = words.partition("\n\n")[0]
        elif number < len(pieces):
            words = re.sub(r"(?:^|\n)[ \t]*\d+[ \t]*$", "", words)
        for part in re.split(r"(?=<v[. ])", words):
            voice = _VOICE.match(part)
            lines = [html.unescape(_TAG.sub("", line)).strip() for line in part.split("\n")]
            if is_rolling:  # captions that roll: each cue repeats the line above
                lines = [line for above, line in zip([last_line, *lines], lines, strict=False) if line != above]
            lines = [line for line in lines if line]
            last_line = lines[-1] if lines else last_line
            is_dialogue = all(line.startswith(("-", "\u2013")) for line in lines)
            cues.append((voice[1].strip() if voice else "", ("\n" if is_dialogue else " ").join(lines)))
    labels = [_LABEL.match(words) for _, words in cues]
    has_labels = 2 * sum(label is not None for label in labels) >= sum(bool(words) for _, words in cues)
    speaker = ""
    for (voice, words), label in zip(cues, labels, strict=True):
        if not voice and has_labels and label is not None:
            voice, words = label[1], words[label.end() :]
        speaker = voice or speaker
        if words:
            yield speaker, words


def _join(cues: Iterable[Words]) -> Iterator[Words]:
    """Yield the cues, those of a speaker joined up to the end of a sentence."""
    open_cue: Words | None = None
    for speaker, words in cues:
        if open_cue is not None and open_cue[0] == speaker and len(open_cue[1]) < _LONGEST:
            words = f"{open_cue[1]} {words}"
        elif open_cue is not None:
            yield open_cue
        open_cue = (speaker, words)
        if _SENTENCE_END.search(words):
            yield open_cue
            open_cue = None
    if open_cue is not None:
        yield open_cue
