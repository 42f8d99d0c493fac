"""Further words for the full world: people, relations, attributes of people, filler.

The rules are those of `phrases`. In a sentence `{n}` is the person: a name, or "my mentor" where a question goes
through a relation.
"""

from __future__ import annotations

from itertools import product

from memalpha.tasks.synthetic.phrases import EVENTS, POOLS, Attribute, EventKind, words

PEOPLE = words(
    "Abel Adele Agnes Albert Alma Amos Andrea Angus Anton Arlo Astrid Aurora Axel Beatrice Benita Boris Brenda Bruno "
    "Camille Cedric Chloe Cyrus Dagmar Dario Delia Dexter Diego Edith Edgar Elias Elsa Enzo Erika Ernest Esther Eva "
    "Fabian Fiona Flora Frank Freya Gavin Gemma Gerald Gilbert Gloria Hannes Harriet Hector Helga Henry Hilda Ian Ida "
    "Inga Iris Isaac Ivan Jasper Joan Joel Josef Judith Kai Karin Kasper Keira Kurt Lars Laura Levi Linus Lola Lorenz "
    "Louis Lucia Magnus Mara Marvin Mateo Mia Milo Mona Moritz Nadia Naomi Neil Niels Noah Olga Oliver Olivia Ophelia "
    "Pablo Patrick Pia Quincy Ralph Ramona Renata Rita Robin Rufus Ruth Samuel Sandra Saskia Selma Sven Stella Tessa "
    "Theo Tilda Timon Ulrich Vanessa Vincent Wilma Wendel Xavier Yara Yvonne Zelda"
)

_SURNAMES = words(
    "Abbott Baxter Calder Dalton Ellison Fairfax Granger Holloway Ingram Jarvis Keller Lockwood Mercer Norwood Oakley "
    "Prescott Quimby Radcliffe Sinclair Thatcher Underwood Vance Whitlock Yardley "
    "Ashdown Birchall Crowther Dunmore Eastwood Farrow Gillespie Hargreave Iverson Kendrick Larkin Maddox Nettle "
    "Osborne Pemberton Ridley"
)
_PLACE_STARTS = words(
    "Bren Kal Nor Tor Vel Mar Hal Fen Gar Sol Ald Ber Cor Dun Eld Fal Gil Hest Ings Jor Kel Lan Mor Nel Orr Pel Quen "
    "Ros Stav Tren Ulv Vin Wes Yar Zel Ash Cald Drum Esk Frit Gorm Hov Jar Kirk Lund Myr Nag Oster Padd Rav Skag Thorn "
    "Ups Varn Wold Yel Zorb Birk Crom Dalk Elm Flod"
)
_PLACE_ENDS = words(
    "ford dale by stad holm ville burg mouth wick ness field haven moor shore gate brook sund loe "
    "thorpe combe gard holt mere strand"
)
_ADJECTIVES = words(
    "Silent Golden Broken Hidden Crooked Frozen Burning Distant Hollow Velvet Wicked Gentle Restless Savage Secret "
    "Shattered Sleeping Stolen Sunken Twisted Wandering Winding Faded Electric Crystal Phantom Paper Plastic Concrete "
    "Infinite Final Seventh Lonely Bitter Nameless Drowsy Marble Copper "
    "Wooden Rusty Foggy Stormy Dancing Laughing Falling Rising Clever Humble"
)
_NOUNS = words(
    "River Mountain Garden Mirror Engine Harbor Tower Forest Island Lantern Whisper Shadow Crown Empire Orchard Desert "
    "Bridge Valley Canyon Beacon Anchor Feather Pendulum Comet Planet Carousel Ballroom Cathedral Corridor Horizon "
    "Meadow Window Staircase Chimney Tunnel Glacier Volcano Lagoon Machine Puppet"
)

FULL_POOLS: dict[str, tuple[str, ...]] = {
    **POOLS,
    "person": PEOPLE,
    "place": tuple(start + end for start, end in product(_PLACE_STARTS, _PLACE_ENDS)),
    "title": tuple(f"The {adjective} {noun}" for adjective, noun in product(_ADJECTIVES, _NOUNS)),
    "group": tuple(f"{adjective} {noun}s" for adjective, noun in product(_ADJECTIVES, _NOUNS)),
    "guest": tuple(f"{first} {last}" for first, last in product(POOLS["name"], _SURNAMES)),
}
"""All pools: the demo's, names of people, and large composed ones for events."""

_EVENT_POOLS = {"trip": "place", "race": "place", "concert": "group", "movie": "title", "dinner": "guest"}

FULL_EVENTS: tuple[EventKind, ...] = tuple(
    EventKind(kind.key, _EVENT_POOLS[kind.key], kind.states, kind.counts, kind.whens, kind.distractors)
    for kind in EVENTS
)

EVENT_NAMES = {
    "trip": "the trip to {v}",
    "race": "the race in {v}",
    "concert": "the concert of {v}",
    "movie": "the movie {v}",
    "dinner": "the dinner with {v}",
}
"""Wording of an event inside a question about two events."""

ORDER = ("What came first, {a} or {b}?", "Which was earlier, {a} or {b}?")
BETWEEN = ("How many days lie between {a} and {b}?", "How many days were there between {a} and {b}?")
PREVIOUS = ("What was {whose} {key} before {v}?", "Before {v}, what was {whose} {key}?")


def _relation(key: str, changes: bool) -> Attribute:
    states = (f"My {key} is {{v}}.", f"{{v}} is my {key}.", f"I have a {key} called {{v}}.")
    updates = (f"My new {key} is {{v}}.", f"{{v}} is my {key} now.", f"My {key} is no longer {{old}} but {{v}}.")
    questions = (f"Who is my {key}?", f"What is the name of my {key}?")
    distractors = (f"I wish {{v}} were my {key}.", f"{{v}} was never my {key}.", f"People take {{v}} for my {key}.")
    return Attribute(key, states, updates if changes else (), (), questions, distractors, pool="person")


RELATIONS: tuple[Attribute, ...] = tuple(
    _relation(key, key not in ("niece", "nephew", "stepson"))
    for key in words("niece nephew stepson manager landlord tutor roommate mentor therapist trainer")
)
"""Single-valued relations of the user; their values are people, so questions can chain through them."""

PERSON_ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "city",
        ("{n} lives in {v}.", "The home of {n} is in {v}.", "{n} is based in {v}."),
        ("{n} moved to {v}.", "{n} lives in {v} now.", "{n} no longer lives in {old} but in {v}."),
        ("{n} left {old} and lives nowhere for now.", "Please forget where {n} lives."),
        ("Where does {n} live?", "Which city does {n} live in?"),
        ("{n} may move to {v} one day.", "{n} never lived in {v}.", "{n} dreams of living in {v}."),
    ),
    Attribute(
        "job",
        ("{n} works as {an}.", "The job of {n} is {v}.", "{n} is {an} by trade."),
        ("{n} is now {an}.", "{n} switched jobs and works as {an}.", "{n} is no longer {old_an} but {an}."),
        ("{n} quit and has no job.", "Please forget the job of {n}."),
        ("What is the job of {n}?", "What does {n} work as?"),
        ("{n} would make a fine {v}.", "{n} never wanted to be {an}.", "{n} only played {an} on stage."),
    ),
    Attribute(
        "pet",
        ("{n} has {an} at home.", "The pet of {n} is {an}.", "{n} keeps {an}."),
        ("The pet of {n} is now {an}.", "{n} no longer keeps {old_an} but {an}.", "{n} swapped the {old} for {an}."),
        ("{n} gave the {old} away and has no pet.", "{n} no longer has a pet."),
        ("What pet does {n} have?", "Which animal does {n} keep?"),
        ("{n} wishes for {an} as a pet.", "{n} never had {an}.", "{n} only petted {an} in the zoo."),
    ),
    Attribute(
        "car",
        ("{n} drives {an}.", "The car of {n} is {an}.", "{n} owns {an}."),
        ("{n} drives {an} now.", "The new car of {n} is {an}.", "{n} no longer drives {old_an} but {an}."),
        ("{n} sold the {old} and has no car.", "{n} no longer owns a car."),
        ("What car does {n} drive?", "Which car does {n} own?"),
        ("{n} would love to drive {an}.", "{n} would never drive {an}.", "{n} rented {an} for a day."),
    ),
    Attribute(
        "hobby",
        ("The hobby of {n} is {v}.", "{n} spends all free time on {v}.", "{n} enjoys {v} as a hobby."),
        ("The new hobby of {n} is {v}.", "{n} gave up {old} for {v}.", "The hobby of {n} is {v} now."),
        ("{n} gave up {old} and has no hobby.", "Please forget the hobby of {n}."),
        ("What is the hobby of {n}?", "What does {n} do in free time?"),
        ("{n} might try {v}.", "{n} never cared for {v}.", "{n} thinks {v} is a waste of time."),
    ),
    Attribute(
        "food",
        ("{n} likes to eat {v} best.", "The favorite food of {n} is {v}.", "{n} eats {v} every day."),
        ("The favorite food of {n} is now {v}.", "{n} no longer loves {old} but {v}.", "{n} likes {v} best now."),
        ("{n} is tired of {old} and has no favorite food.", "Please forget the food of {n}."),
        ("What is the favorite food of {n}?", "What does {n} like to eat best?"),
        ("{n} would never eat {v}.", "We might cook {v} for {n}.", "{n} burned the {v}."),
    ),
    Attribute(
        "sport",
        ("The sport of {n} is {v}.", "{n} trains {v} every week.", "{n} does {v} as a sport."),
        ("The sport of {n} is now {v}.", "{n} dropped {old} for {v}.", "{n} switched from {old} to {v}."),
        ("{n} stopped {old} and does no sport.", "Please forget the sport of {n}."),
        ("What sport does {n} do?", "Which sport does {n} train?"),
        ("{n} might try {v} one day.", "{n} was never good at {v}.", "{n} watched {v} on television."),
    ),
    Attribute(
        "language",
        ("{n} is learning {v}.", "{n} studies {v}.", "{n} takes lessons in {v}."),
        ("{n} is now learning {v}.", "{n} dropped {old} and studies {v}.", "{n} studies {v} now."),
        ("{n} stopped learning {old}.", "Please forget the lessons of {n}."),
        ("What language is {n} learning?", "Which language does {n} study?"),
        ("{n} would like to learn {v}.", "{n} does not speak {v}.", "{n} laughed at a song in {v}."),
    ),
)
"""Attributes of named people; an entry reads `Tom city: Oslo`."""

QUOTES: tuple[str, ...] = (
    'In the film a man said "{s}"',
    'The song goes "{s}"',
    'An ad on the wall read "{s}"',
    'The puppet in the show cried "{s}"',
)
"""Frames of a quoted first-person statement that is not the user's."""

STALE_ECHOES: tuple[str, ...] = (
    'You once said "{s}"',
    'My notes say "{s}"',
    'I remember you said "{s}"',
    'Earlier you told me "{s}"',
)
"""Frames in which the assistant repeats a user's statement, which may be stale."""

WEEKDAYS = words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
MONTHS = words("January February March April May June July August September October November December")
DAYS_AGO = {0: "today", 1: "yesterday", 2: "two days ago", 3: "three days ago", 4: "four days ago", 7: "a week ago"}

FILLER: tuple[tuple[str, ...], ...] = (
    ("The", "That", "Our", "This", "Their", "Every", "Another", "The same"),
    words(
        "elevator printer window door lamp radio kettle ladder curtain doorbell engine carpet fridge heater "
        "ceiling mailbox bicycle blanket candle drawer faucet hallway hammer jacket keyboard ladle mattress notebook "
        "oven parcel pillow roof sofa stapler suitcase toaster"
    ),
    (
        "was broken", "made a noise", "looked odd", "fell over", "got stuck", "needed work", "was in the way",
        "was gone", "came back", "seemed fine", "was too loud", "smelled strange", "was fixed", "cost too much",
    ),
    (
        "again", "this morning", "all day", "before lunch", "at noon", "after work", "in the evening", "at night",
        "for an hour", "for no reason", "as usual", "once more", "somehow", "for a while",
    ),
)  # fmt: skip
"""Columns of filler sentences: one phrase of each, in order."""

FILLER_REPLIES: tuple[tuple[str, ...], ...] = (
    ("I see", "Okay", "That happens", "Sorry to hear", "Good to know", "Sure", "Right", "Understood", "Fair enough"),
    ("and then?", "no worries.", "tell me more.", "let me know.", "I hope it gets better.", "take your time."),
)
