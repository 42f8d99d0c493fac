"""Words of the synthetic worlds: value pools and sentences.

Sentences state, change, retract and ask. Pools are pairwise disjoint (ignoring case) and no sentence contains a pool's
word, so a value in a text always comes from the generator. In a sentence `{v}` is the value, `{an}` the value with its
article, `{old}` the value it replaces and `{old_an}` that one with its article.
"""

from __future__ import annotations

from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """Split a text at white space."""
    return tuple(text.split())


POOLS: dict[str, tuple[str, ...]] = {
    "city": words(
        "Oslo Rome Paris Berlin Madrid Lisbon Porto Vienna Prague Warsaw Dublin London Athens Cairo Lima Quito "
        "Bogota Tokyo Osaka Kyoto Seoul Delhi Mumbai Dakar Accra Lagos Nairobi Tunis Rabat Boston Chicago Denver "
        "Dallas Austin Seattle Miami Atlanta Toronto Montreal Havana Geneva Zurich Basel Milan Turin Naples Venice "
        "Munich Hamburg Cologne Bremen Ghent Bruges Utrecht Malmo Bergen Tampere Riga Vilnius Tallinn Sofia Zagreb "
        "Trieste Ankara"
    ),
    "job": words(
        "nurse teacher lawyer pilot baker chef farmer plumber painter dentist surgeon writer editor designer "
        "architect carpenter mechanic electrician librarian journalist accountant barber tailor florist butcher "
        "waiter bartender translator actor dancer geologist chemist biologist judge sailor welder"
    ),
    "pet": words(
        "cat dog rabbit hamster parrot turtle goldfish snake lizard gecko ferret pony goat canary budgie iguana "
        "tortoise mouse rat hedgehog chinchilla frog newt spider duck goose chicken pigeon falcon llama donkey "
        "piglet"
    ),
    "car": words(
        "Toyota Honda Volvo Tesla Ford Audi Skoda Fiat Mazda Subaru Kia Jeep Renault Peugeot Citroen Opel Alfa "
        "Lexus Nissan Suzuki Jaguar Porsche Ferrari Bentley Dacia Mini Saab Lancia Buick Dodge Chevrolet Hyundai"
    ),
    "hobby": words(
        "chess knitting gardening weaving pottery origami sewing baking birdwatching stargazing calligraphy "
        "photography fishing hiking camping juggling puzzles crosswords sudoku sculpting woodwork beekeeping "
        "brewing blogging quilting embroidery geocaching magic poker backgammon dominoes genealogy"
    ),
    "drink": words(
        "coffee tea cocoa lemonade cola milk juice water beer wine cider ale whisky rum gin vodka brandy sherry "
        "port mead kefir lassi chai matcha espresso latte mocha smoothie kombucha ayran sake cappuccino"
    ),
    "food": words(
        "pizza pasta sushi ramen curry tacos burritos lasagna risotto paella falafel hummus couscous noodles "
        "dumplings pancakes waffles omelette salad soup stew goulash chili burgers fries kebab gnocchi ravioli tofu "
        "pho bibimbap moussaka"
    ),
    "color": words(
        "red blue green yellow purple pink black white grey brown orange violet indigo turquoise teal cyan magenta "
        "maroon navy beige ivory silver gold crimson scarlet lavender lilac coral amber emerald khaki mauve"
    ),
    "sport": words(
        "tennis soccer rugby hockey golf cricket boxing judo karate fencing rowing sumo surfing skiing snowboarding "
        "skating climbing cycling swimming archery badminton squash baseball basketball volleyball handball "
        "wrestling curling bowling polo darts triathlon"
    ),
    "language": words(
        "Spanish French German Italian Portuguese Dutch Swedish Danish Norwegian Finnish Polish Czech Hungarian "
        "Greek Turkish Arabic Hebrew Persian Hindi Bengali Tamil Thai Vietnamese Korean Japanese Mandarin Swahili "
        "Zulu Latin Irish Welsh Catalan"
    ),
    "phone": words(
        "Nokia Samsung Pixel iPhone Motorola Oppo Vivo Honor Huawei Xiaomi Realme Asus Lenovo Fairphone OnePlus "
        "BlackBerry Palm Siemens Ericsson Alcatel Sharp Panasonic Toshiba Philips HTC ZTE Doro Meizu Tecno Infinix "
        "Wiko Gigaset"
    ),
    "instrument": words(
        "piano guitar violin cello flute drums harp trumpet trombone tuba clarinet oboe bassoon saxophone banjo "
        "ukulele mandolin accordion harmonica organ viola lute sitar bagpipes xylophone recorder piccolo cornet "
        "zither marimba theremin bongos"
    ),
    "band": words(
        "Blur Oasis Queen Genesis Radiohead Coldplay Muse Nirvana Metallica Abba Toto Journey Kiss Rush Cream Yazoo "
        "Slayer Pixies Pulp Suede Travis Keane Garbage Hole Bush Korn Tool Weezer Wilco Interpol Phoenix Justice "
        "Gorillaz Portishead Massive Morcheeba Placebo Editors Foals Elbow"
    ),
    "book": words(
        "Dune Ulysses Dracula Middlemarch Frankenstein Persuasion Walden Beloved Solaris Neuromancer Foundation "
        "Hyperion Ivanhoe Candide Faust Hamlet Macbeth Othello Leviathan Utopia Siddhartha Steppenwolf Nostromo "
        "Heidi Lolita Pnin Atonement Gilead Possession Quicksilver Circe Piranesi"
    ),
    "allergy": words(
        "peanuts pollen dust shellfish eggs wheat gluten soy sesame mustard celery latex penicillin aspirin nickel "
        "feathers mold wool strawberries kiwi almonds walnuts cashews hazelnuts shrimp oysters lupin ragweed "
        "lentils garlic onions bananas"
    ),
    "employer": words(
        "Acme Globex Initech Gekko Hooli Vandelay Stark Wayne Wonka Cyberdyne Tyrell Soylent Aperture Massey Oscorp "
        "Lexcorp Monarch Dunder Sterling Pied Prestige Nakatomi Weyland Virtucon Zorin Spacely Cogswell Bluth "
        "Gringotts Octan Sirius Vehement"
    ),
    "movie": words(
        "Alien Jaws Heat Gravity Avatar Titanic Rocky Psycho Vertigo Casablanca Amadeus Gladiator Inception Fargo "
        "Memento Tenet Arrival Gattaca Zodiac Parasite Moonlight Whiplash Nightcrawler Braveheart Interstellar "
        "Platoon Serpico Chinatown Rashomon Ikiru Goodfellas Roma"
    ),
    "name": words(
        "Anna Ben Clara David Elena Felix Greta Hugo Ines Jonas Klara Leo Maria Nina Oscar Petra Quentin Rosa Simon "
        "Tara Umar Vera Walter Xenia Yusuf Zoe Amir Bianca Carlos Dora Emil Fatima Gustav Hanna Igor Julia Karim "
        "Lena Marco Nora Otto Paula Rafael Sonja Tobias Ursula Viktor Wanda"
    ),
}


@dataclass(frozen=True, slots=True)
class Attribute:
    """Describe a single-valued attribute of a person; `key` is its name in an entry (`city: Oslo`).

    A `states` sentence about a filled slot is an update without a cue word. `distractors` name a value without stating
    the fact (third person, hypothetical, negated). The user's `questions` name the key, so that a reader without a
    language model can answer from a perfect memory. Questions about other people need not.
    """

    key: str
    states: tuple[str, ...]
    updates: tuple[str, ...]
    retracts: tuple[str, ...]
    questions: tuple[str, ...]
    distractors: tuple[str, ...]
    pool: str = ""
    """Pool of its values; "" stands for the pool named like the key."""

    def __post_init__(self) -> None:
        if not self.pool:
            object.__setattr__(self, "pool", self.key)


@dataclass(frozen=True, slots=True)
class EventKind:
    """Describe a kind of event of the user (`trip: Rome`).

    `{when}` is "today", "yesterday" or the like. `distractors` are about a third person, hypothetical and negated, in
    this order.
    """

    key: str
    pool: str
    states: tuple[str, ...]
    counts: tuple[str, ...]
    whens: tuple[str, ...]
    distractors: tuple[str, ...]


ATTRIBUTES: tuple[Attribute, ...] = (
    Attribute(
        "city",
        ("I live in {v}.", "My home is in {v}.", "I am based in {v}.", "{v} is where I live."),
        ("I moved to {v}.", "I live in {v} now.", "I no longer live in {old} but in {v}."),
        ("I left {old} and have no fixed home.", "Please forget which city I live in.", "I live nowhere for now."),
        ("In what city do I live?", "Which city do I live in?", "What city is my home?"),
        ("My aunt lives in {v}.", "Maybe I will live in {v} one day.", "I have never lived in {v}."),
    ),
    Attribute(
        "job",
        ("I work as {an}.", "My job is {v}.", "I am {an} by trade."),
        ("I switched jobs and am {an} now.", "I am no longer {old_an} but {an}.", "My new job is {v}."),
        ("I quit working as {old_an} and have no job.", "Please forget my job.", "I have no job any more."),
        ("What is my job?", "Which job do I work in?", "What job do I have?"),
        ("My cousin works as {an}.", "As a kid I dreamed of being {an}.", "I would never be {an}."),
    ),
    Attribute(
        "pet",
        ("I have {an} at home.", "My pet is {an}.", "I keep {an} as a pet."),
        ("My pet is now {an}.", "I no longer have {old_an} as a pet but {an}.", "I swapped my {old} for {an}."),
        ("I gave my {old} away and have no pet.", "I no longer have a pet.", "Please forget my pet."),
        ("What pet do I have?", "Which animal is my pet?", "What kind of pet do I keep?"),
        ("My neighbor has {an} as a pet.", "I wish I had {an} as a pet.", "I never had {an} as a pet."),
    ),
    Attribute(
        "car",
        ("I drive {an}.", "My car is {an}.", "I own {an}, it is my car."),
        ("I switched cars and drive {an} now.", "I no longer drive {old_an} but {an}.", "My new car is {an}."),
        ("I sold my {old} and have no car.", "I no longer own a car.", "Please forget my car."),
        ("What car do I drive?", "Which car do I own?", "What is my car?"),
        ("My boss drives {an}.", "If I were rich I would drive {an}.", "I would not drive {an}."),
    ),
    Attribute(
        "hobby",
        ("My hobby is {v}.", "I spend my free time on {v}.", "I enjoy {v} as a hobby."),
        ("My new hobby is {v}.", "I gave up {old}, my hobby is {v} now.", "I switched my hobby from {old} to {v}."),
        ("I gave up {old} and have no hobby.", "I have no hobby any more.", "Please forget my hobby."),
        ("What is my hobby?", "What hobby fills my free time?", "Which hobby do I have?"),
        ("My uncle's hobby is {v}.", "Maybe {v} would be a fun hobby.", "I never cared for {v}."),
    ),
    Attribute(
        "drink",
        ("My favorite drink is {v}.", "I mostly drink {v}.", "I like to drink {v} best."),
        ("I mostly drink {v} now.", "I no longer drink {old} but {v}.", "I switched from {old} to {v}."),
        ("I stopped drinking {old}, I have no favorite.", "Please forget my drink.", "I have no favorite drink now."),
        ("What is my favorite drink?", "What do I mostly drink?", "Which drink do I like best?"),
        ("My sister drinks {v}.", "If it were warmer I would drink {v}.", "I never drink {v}."),
    ),
    Attribute(
        "food",
        ("My favorite food is {v}.", "I like to eat {v} best.", "I could eat {v} every day."),
        ("My favorite food is now {v}.", "I no longer love {old} but {v}.", "These days I like {v} best to eat."),
        ("I am tired of {old}, no favorite food now.", "Please forget my food.", "I have no favorite food any more."),
        ("What is my favorite food?", "What food do I like best?", "Which food do I love?"),
        ("My brother loves {v} for lunch.", "Maybe we could cook {v}.", "I do not eat {v}."),
    ),
    Attribute(
        "color",
        ("My favorite color is {v}.", "I like the color {v} best.", "My color is {v}."),
        ("My favorite color is now {v}.", "I no longer like {old} best but {v}.", "I switched my color to {v}."),
        ("I have no favorite color any more.", "Please forget my color.", "I no longer care for {old}."),
        ("What is my favorite color?", "Which color do I like best?", "What is my color?"),
        ("My aunt paints it all {v}.", "If I had to, I would wear {v}.", "I never wear {v}."),
    ),
    Attribute(
        "sport",
        ("My sport is {v}.", "I train {v} every week.", "I do {v} as my sport."),
        ("My sport is now {v}.", "I dropped {old} and do {v} now.", "I switched from {old} to {v} as my sport."),
        ("I stopped {old} and do no sport.", "I no longer do any sport.", "Please forget my sport."),
        ("What sport do I do?", "Which sport do I train?", "What is my sport?"),
        ("My cousin trains {v}.", "I might try {v} one day.", "I was never good at {v}."),
    ),
    Attribute(
        "language",
        ("I am learning {v}.", "I study {v} at night.", "I take lessons in {v}."),
        ("I am now learning {v}.", "I dropped {old} and study {v}.", "I switched my lessons from {old} to {v}."),
        ("I stopped learning {old}.", "I no longer study any language.", "Please forget my language lessons."),
        ("What language am I learning?", "Which language do I study?", "What language do I take lessons in?"),
        ("My friend is learning {v}.", "If I had time I would learn {v}.", "I do not speak {v}."),
    ),
    Attribute(
        "phone",
        ("I use {an} phone.", "My phone is {an}.", "My phone is made by {v}."),
        ("My new phone is {an}.", "I switched from {old} to {v} for my phone.", "I use {an} phone now, no {old}."),
        ("I lost my {old} and have no phone.", "I no longer have a phone.", "Please forget my phone."),
        ("What phone do I use?", "Which phone do I have?", "What brand is my phone?"),
        ("My mother has {an} phone.", "Maybe {an} phone would be nice.", "I do not trust {v} phones."),
    ),
    Attribute(
        "instrument",
        ("I play the {v}.", "My instrument is the {v}.", "I practice the {v} daily."),
        ("I now play the {v}.", "I no longer play the {old} but the {v}.", "I switched from {old} to {v} practice."),
        ("I sold the {old} and play nothing.", "I no longer play any instrument.", "Please forget my instrument."),
        ("What instrument do I play?", "Which instrument do I practice?", "What is my instrument?"),
        ("My father plays the {v}.", "I would love to play the {v}.", "I cannot play the {v}."),
    ),
    Attribute(
        "band",
        ("My favorite band is {v}.", "I love the band {v}.", "I listen to the band {v} most."),
        ("My favorite band is now {v}.", "I no longer love {old}, my band is {v}.", "The band I love now is {v}."),
        ("I am over {old}, no favorite band now.", "Please forget my band.", "I have no favorite band any more."),
        ("What is my favorite band?", "Which band do I love?", "What band do I listen to most?"),
        ("My flatmate adores the band {v}.", "If {v} toured I might listen.", "I cannot stand the band {v}."),
    ),
    Attribute(
        "book",
        ("I am reading {v}.", "The book on my desk is {v}.", "My current book is {v}."),
        ("I am reading {v} now.", "I finished {old} and started {v}.", "I swapped my book {old} for {v}."),
        ("I finished {old} and read nothing now.", "I am not reading any book now.", "Please forget my book."),
        ("What book am I reading?", "Which book do I read?", "What is my current book?"),
        ("My professor recommended {v}.", "I might read {v} some day.", "I never finished reading {v}."),
    ),
    Attribute(
        "allergy",
        ("I am allergic to {v}.", "I have an allergy to {v}.", "My allergy is {v}."),
        ("The test says it is {v} I am allergic to.", "I am now allergic to {v}, not {old}.", "My allergy is {v} now."),
        ("My allergy to {old} is gone.", "I no longer have any allergy.", "Please forget my allergy."),
        ("What allergy did I mention?", "What is my allergy?", "Which allergy do I have?"),
        ("My son is allergic to {v}.", "Imagine being allergic to {v}.", "I am not allergic to {v}."),
    ),
    Attribute(
        "employer",
        ("I work for {v}.", "My employer is {v}.", "I am employed at {v}."),
        ("I work for {v} now.", "I left {old} and joined {v}.", "My new employer is {v}."),
        ("I left {old} and work for nobody.", "I no longer have an employer.", "Please forget my employer."),
        ("Which employer do I have?", "Who is my employer?", "Which company is my employer?"),
        ("My wife works for {v}.", "If {v} called I would listen.", "I turned down a job at {v}."),
    ),
)

EVENTS: tuple[EventKind, ...] = (
    EventKind(
        "trip",
        "city",
        ("I took a trip to {v} {when}.", "{When} I went on a trip to {v}.", "{When} I visited {v}."),
        ("How many trips did I take?", "How many trips did I go on?"),
        ("When did I take the trip to {v}?", "When did I visit {v}?"),
        ("My uncle took a trip to {v}.", "A trip to {v} would be nice.", "I skipped the trip to {v}."),
    ),
    EventKind(
        "concert",
        "band",
        ("I saw {v} live {when}.", "{When} I was at a concert of {v}.", "I went to {an} concert {when}."),
        ("How many concerts did I go to?", "How many concerts was I at?"),
        ("When did I see {v} live?", "When was I at the concert of {v}?"),
        ("My boss saw {v} live.", "I would go to a concert of {v}.", "I missed the concert of {v}."),
    ),
    EventKind(
        "race",
        "city",
        ("I ran a race in {v} {when}.", "{When} I ran the {v} race.", "I finished the race in {v} {when}."),
        ("How many races did I run?", "How many races did I finish?"),
        ("When did I run the race in {v}?", "When was my race in {v}?"),
        ("My coach ran a race in {v}.", "I might run the race in {v}.", "I did not run the race in {v}."),
    ),
    EventKind(
        "movie",
        "movie",
        ("I watched the movie {v} {when}.", "{When} I saw the movie {v}.", "The movie {when} was {v}."),
        ("How many movies did I watch?", "How many movies did I see?"),
        ("When did I watch {v}?", "When did I see the movie {v}?"),
        ("My sister watched the movie {v}.", "We could watch the movie {v}.", "I did not see the movie {v}."),
    ),
    EventKind(
        "dinner",
        "name",
        ("I had dinner with {v} {when}.", "{When} I met {v} for dinner.", "Dinner with {v} {when} was lovely."),
        ("How many dinners did I have with friends?", "How many people did I have dinner with?"),
        ("When did I have dinner with {v}?", "When did I meet {v} for dinner?"),
        ("My wife had dinner with {v}.", "I should have dinner with {v}.", "I cancelled dinner with {v}."),
    ),
)

CHITCHAT: tuple[str, ...] = (
    "The weather is lovely.",
    "It rained all morning.",
    "I slept badly.",
    "The train was late again.",
    "What a long week.",
    "I need a break.",
    "The kids were loud.",
    "My back hurts a bit.",
    "Thanks for listening.",
    "How are you?",
    "I forgot my umbrella.",
    "The meeting was boring.",
    "I cleaned the kitchen.",
    "The bus was full.",
    "Time flies.",
    "I am a bit tired.",
    "The shop was closed.",
    "My desk is a mess.",
    "Traffic was awful.",
    "I had a nice nap.",
    "Nothing new here.",
    "The lights went out.",
    "I lost my keys again.",
    "It is cold outside.",
    "The elevator is broken.",
    "See you soon.",
)

REPLIES: tuple[str, ...] = ("I see.", "Good to know.", "Nice!", "Tell me more.", "Okay.", "Sure.", "Thanks!")

ECHOES: tuple[str, ...] = ("Ah, {v}.", "So it is {v}.", "You told me about {v}.", "I recall {v}.", "Right, {v}!")
