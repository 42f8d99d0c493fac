"""Further phrasings of the demo world's facts, changes, retractions, events and distractors.

Placeholders are those of `memalpha.tasks.synthetic.phrases`. Every fourth phrasing is held out of the
training rows.
"""

from __future__ import annotations

from smol.phrase_lines import lines

HELD_OUT_EVERY = 4

LEADS = lines("""
    Hey, quick update from my side.
    So, about me:
    Not sure I ever said this, but:
    Hello again!
    Morning!
    Before I forget:
    Oh, by the way.
    Hi, hope you are well.
    Funny story.
    Okay, listen.
    One thing you should know:
    Just so you have it right:
""")

TAILS = lines("""
    Anyway, how is your day?
    Long story.
    What do you think?
    Crazy, right?
    Just thought I would mention it.
    More on that some other time.
    Makes me happy.
    No big deal.
    Anyway, back to work.
    It still feels a little strange.
    You know how it is.
    That is all for today.
""")

STATES: dict[str, tuple[str, ...]] = {
    "city": lines("""
        I've got a small flat in {v} these days.
        {v} has been home for a few years.
        We settled down in {v} with the family.
        My flat is right in the middle of {v}.
        I'm a resident of {v}, in case you need it for the form.
        If you send me a postcard, send it to {v}, that's where my place is.
        Living in {v} suits me well.
        You can find me in {v}, third floor, no elevator.
        The rent here in {v} is eating me up.
        My address is in {v}.
        I've been living over in {v} for ages.
        Every evening I come home to my apartment in {v}.
    """),
    "job": lines("""
        I earn my living as {an}.
        For a living, I'm {an}.
        I make my money as {an}, mostly night shifts.
        People call me when they need {an}, that's my profession.
        I've been working as {an} for ten years.
        By profession I'm {an}, like my grandfather.
        My day job? I'm {an}.
        On my business card it says {v}.
        They pay me to be {an}, can you believe it?
        I trained as {an} and that's what I do every day.
        I go to work as {an} five days a week.
        As {an}, I'm on my feet all day.
    """),
    "pet": lines("""
        I share my flat with {an}.
        My {v} woke me up at five again.
        There's {an} sleeping on my sofa, it's mine and I adore it.
        I look after {an}, my little companion at home.
        I've got {an}, it keeps me company.
        My {v} needs feeding twice a day.
        I own {an} and spoil it rotten.
        The {v} I keep at home is getting fat.
        I got {an} from the shelter, it lives with me.
        Our household includes {an}.
        I have to get back to feed my {v}.
        My {v} chewed up my slippers.
    """),
    "car": lines("""
        I get around in my {v}.
        There's {an} parked in my garage, it's mine.
        I've got {an}, an old one, but it runs.
        My {v} needs new tyres.
        I take my {v} to the office each morning.
        I had to bring my {v} in for its inspection.
        The car I own is {an}.
        My {v} broke down on the motorway again.
        I commute in {an} that I bought used.
        On weekends I wash my {v}.
        I bought {an} years ago and still drive it.
        My wheels? {an}, nothing fancy.
    """),
    "hobby": lines("""
        In my spare time I'm all about {v}.
        What I do for fun is {v}.
        Most weekends you'll find me busy with {v}.
        After work I unwind with {v}.
        I'm really into {v}.
        My evenings belong to {v}.
        I've got a passion for {v}.
        When I have a free hour, it goes into {v}.
        For relaxing, nothing beats {v} for me.
        My pastime is {v}.
        I'm hooked on {v}, I do it every free minute.
        {v} is what I do when I'm off work.
    """),
    "drink": lines("""
        My go-to drink is {v}.
        Whenever I'm thirsty I reach for {v}.
        I always order {v}.
        Give me {v} over anything else in a glass.
        If you're buying, I'll have {v}, as always.
        I can't start the day without {v}.
        There's always {v} in my cup.
        {v} is what I drink all day.
        Of all drinks, {v} is the one for me.
        The waiter knows I'll want {v}.
        Nothing quenches my thirst like {v}.
        I basically live on {v}.
    """),
    "food": lines("""
        Nothing tastes better to me than {v}.
        The dish I love most is {v}.
        On my birthday I always ask for {v}.
        I'm crazy about {v}, best meal there is.
        If I could only eat one thing it would be {v}.
        When it comes to food, {v} wins for me.
        You can always make me happy with {v} for dinner.
        {v} is my comfort food.
        I'd pick {v} over any other meal.
        My all-time best dish is {v}.
        For me no meal beats {v}.
        I never say no to {v}, it's the meal I like most.
    """),
    "color": lines("""
        If it comes in {v}, I'll buy it, that's the color for me.
        Of all colors I prefer {v}.
        I'm a {v} person, my whole closet is that color.
        {v} is the shade I love most.
        I painted my room {v}, it's the color I like most.
        The color that makes me happy is {v}.
        I always pick {v} when I can choose a color.
        No color beats {v} for me.
        Everything I own is {v}, I just love that color.
        My preferred shade is {v}.
        When it comes to colors, {v} wins.
        You know me, I choose {v} over every other color.
    """),
    "sport": lines("""
        I do {v} twice a week to stay fit.
        On Tuesdays I've got {v} practice.
        I keep in shape with {v}.
        {v} is how I get my exercise.
        I'm on the local {v} team.
        I joined the {v} club, I train there regularly.
        To stay fit, I go for {v}.
        My workout of choice is {v}.
        You'll see me at {v} training on Thursdays.
        I compete in {v} at the club.
        For exercise I rely on {v}.
        I'm sore from {v} practice, like every Monday.
    """),
    "language": lines("""
        I'm taking a class in {v}.
        I've been picking up {v} with an app.
        My {v} teacher gave me a lot of homework.
        On Mondays I go to my {v} course.
        I'm trying to master {v} grammar.
        I practise {v} vocabulary on the train.
        I signed up for {v} lessons at the evening school.
        Every night I do half an hour of {v} exercises.
        I'm working on my {v}, I can already order food.
        I've started studying {v}, it's hard.
        My goal is to speak {v} by summer, I study daily.
        I'm a beginner in {v}, the course runs all year.
    """),
    "phone": lines("""
        I carry {an} in my pocket, it's my only phone.
        The phone I've got is {an}.
        I'm texting you from my {v}.
        My {v} battery is dying again.
        My mobile is {an}.
        I've had {an} as my phone for two years.
        I make all my calls on {an}.
        I dropped my {v} but it still works.
        For calls I have {an}.
        My handset is {an}, a bit scratched.
        The screen of my {v} has a crack.
        My cell is {an}.
    """),
    "instrument": lines("""
        I've been taking {v} lessons since I was nine.
        My neighbors hear me on the {v} every evening.
        In our little band I'm on the {v}.
        I perform on the {v} at weddings.
        I picked up the {v} as a child and still play it.
        My {v} needs tuning.
        I spend an hour a day with my {v}.
        I'm the one with the {v} in the orchestra.
        Making music on the {v} calms me down.
        I'm getting better at the {v}, I play each night.
        I rehearse on my {v} every Sunday.
        I'm a {v} player.
    """),
    "band": lines("""
        I have all the records of {v}, best group ever.
        No group comes close to {v} for me.
        {v} is the band I've got on repeat.
        I'm a huge fan of {v}, number one for me.
        The group I adore most is {v}.
        My playlist is ninety percent {v}, I love them most.
        Of all bands, I like {v} best.
        If you ask me, {v} is the greatest band.
        I've got a poster of {v} on the wall, my top band.
        {v} is my number one group.
        I play the songs of {v} all day, nobody's better.
        For me it's {v} above every other band.
    """),
    "book": lines("""
        I'm halfway through {v}.
        The novel on my nightstand is {v}.
        I've just begun reading {v}.
        I'm on chapter three of {v}.
        At bedtime I read a few pages of {v}.
        These days I'm buried in {v}.
        I carry {v} around and read it on the train.
        I can't put {v} down.
        I'm working my way through {v}.
        I opened {v} last week and I'm still reading it.
        My reading at the moment: {v}.
        I've got two hundred pages of {v} left to read.
    """),
    "allergy": lines("""
        I get a rash from {v}.
        I can't be near {v}, I react badly.
        {v} makes me sneeze and swell up.
        My doctor told me to avoid {v} because of my allergy.
        I carry an inhaler because of {v}.
        I break out in hives from {v}.
        My body can't handle {v}, it's an allergy.
        Please keep {v} away from me, I'm allergic.
        The test at the clinic came back positive for {v}.
        I have a bad reaction to {v}.
        {v} sends me straight to the hospital.
        With {v}, my throat closes up, so no thanks.
    """),
    "employer": lines("""
        My paycheck comes from {v}.
        I'm on the staff at {v}.
        I have a desk at {v}, on the fourth floor.
        I've been with {v} for six years.
        The company that pays me is {v}.
        I go to the {v} office every day, that's my company.
        {v} hired me straight out of school and I'm still there.
        I'm under contract with {v}.
        My boss at {v} is quite nice.
        I'm part of the team at {v}.
        I spend my working days at {v}.
        I've got a permanent position with {v}.
    """),
}

EVENT_STATES: dict[str, tuple[str, ...]] = {
    "trip": lines("""
        I got back from {v} {when}.
        I spent the day in {v} {when}.
        {When} I hopped on a train and saw {v}.
        I toured {v} {when}.
        {When} we drove out to {v} for some sightseeing.
        I flew to {v} {when}, what a place.
        {When} I wandered around {v} with a map.
        I made an outing to {v} {when}.
    """),
    "concert": lines("""
        I was in the front row for {v} {when}.
        {When} {v} played in town and I was there.
        I had a ticket for {v} {when}, they were great on stage.
        {When} I watched {v} perform.
        I sang along with {v} at their show {when}.
        The show of {v} {when} was amazing, I was right at the stage.
        {When} I danced at the gig of {v}.
        I caught {v} on tour {when}.
    """),
    "race": lines("""
        I crossed the finish line in {v} {when}.
        {When} I did the half marathon in {v}.
        I got a medal for my run in {v} {when}.
        {When} I competed in the run through {v}.
        I ran ten kilometers in the {v} race {when}.
        {When} I raced in {v} and came in forty-second.
        My legs hurt, I ran the race in {v} {when}.
        I made it through the {v} run {when}.
    """),
    "movie": lines("""
        We put on {v} {when}, what a film.
        {When} I finally got around to watching {v}.
        I streamed {v} {when}.
        {When} they showed {v} at the cinema and I went.
        I was at the cinema for {v} {when}.
        {When} I sat through {v} from start to end.
        I saw {v} on the big screen {when}.
        Our film {when} was {v}.
    """),
    "dinner": lines("""
        I went out to eat with {v} {when}.
        {When} {v} and I shared a table at the Greek place.
        I cooked dinner for {v} {when}.
        {When} {v} came over for dinner.
        {v} and I had dinner together {when}.
        {When} I took {v} out for dinner.
        I ate dinner at {v}'s place {when}.
        {When} I sat down to dinner with {v}.
    """),
}

TRAPS: dict[str, tuple[str, ...]] = {
    "city": lines("""
        My brother has a flat in {v}.
        One day I'd love to have a house in {v}.
        The news tonight was all about {v}.
        They offered me a flat in {v} but I said no.
    """),
    "job": lines("""
        My sister earns her living as {an}.
        I called {an} to fix the problem.
        Being {an} must be hard, I couldn't do it.
        My dad wanted me to become {an}, but no.
    """),
    "pet": lines("""
        My aunt's {v} bit the postman.
        The kids keep asking for {an}, but we won't get one.
        I saw {an} in the park.
        A friend asked whether I'd take her {v}, I said no.
    """),
    "car": lines("""
        My dad traded his car for {an}.
        The taxi was {an}.
        I looked at {an} but it was too expensive.
        Some day I might buy {an}.
    """),
    "hobby": lines("""
        My husband is hooked on {v}.
        I read an article about {v}.
        I tried {v} once and hated it.
        My boss keeps talking about {v}.
    """),
    "drink": lines("""
        My mum can't start the day without {v}.
        They were out of {v} at the shop.
        I tried {v} once, awful.
        My colleague spilled {v} on my desk.
    """),
    "food": lines("""
        My kids would eat {v} all week.
        The canteen had {v} again.
        I've never tried {v}.
        My roommate burnt the {v}.
    """),
    "sport": lines("""
        My son made the {v} team.
        There was {v} on TV all evening.
        I tried {v} once and gave up after an hour.
        My boss wants to take me to {v}, we'll see.
    """),
    "language": lines("""
        My niece is fluent in {v}.
        The film was in {v}, so I used subtitles.
        I wish I understood {v}.
        Somebody spoke {v} on the bus.
    """),
    "book": lines("""
        My wife is halfway through {v}.
        The library doesn't have {v}.
        I gave {v} to a friend as a present, I don't know it myself.
        I've heard {v} is boring.
    """),
    "employer": lines("""
        My brother got hired by {v}.
        I saw an advert of {v}.
        {v} rejected my application years ago.
        A friend of mine complains about {v} all the time.
    """),
}
