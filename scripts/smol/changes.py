"""Further phrasings of changed and retracted facts of the demo world; see `smol.paraphrases`."""

from __future__ import annotations

from smol.phrase_lines import lines

CHANGES: dict[str, tuple[str, ...]] = {
    "city": lines("""
        We packed up everything and relocated to {v}.
        Goodbye {old}, I've settled in {v}.
        I gave up the flat in {old} and found one in {v}.
        The move is done: I live in {v} instead of {old}.
        After all these years in {old}, I'm in {v} for good now.
        I've just unpacked the last box in my new place in {v}.
        My address has changed, I'm in {v} these days.
        {old} is behind me, home is {v} from now on.
    """),
    "job": lines("""
        I've changed careers: these days I work as {an}.
        After years as {old_an} I retrained, and now I'm {an}.
        I left my post as {old_an} to become {an}.
        They made me {an}, so no more being {old_an}.
        I started a new career as {an}.
        Big change at work: I'm {an} now.
        I hung up my life as {old_an}, I work as {an} instead.
        From this week on I'm {an} rather than {old_an}.
    """),
    "pet": lines("""
        The {old} went to my sister and I've got {an} instead.
        My {old} passed on, so I took in {an}.
        I've adopted {an} after my {old} died.
        There's no {old} here any longer, {an} lives with me now.
        A new animal moved in with me: {an}, since the {old} is gone.
        I found a new home for the {old} and brought home {an}.
        Instead of the {old} I have {an} now.
        After the {old}, I decided on {an}.
    """),
    "car": lines("""
        I traded in my {old} for {an}.
        The {old} went to the scrapyard, I drive {an} instead.
        I finally replaced the {old} with {an}.
        Picked up my new car this week, {an}.
        I sold the {old} and bought {an}.
        My {old} died, so I got myself {an}.
        Bye bye {old}, hello {v}, I drive that one now.
        The new one in my garage is {an}, the {old} is gone.
    """),
    "hobby": lines("""
        I got bored of {old} and took up {v}.
        {old} is history, I've moved on to {v}.
        I've swapped {old} for {v} in my free time.
        I don't do {old} any more, it's all {v} now.
        I discovered {v} and dropped {old}.
        These days I'd rather do {v} than {old}.
        I've traded {old} for {v} as a pastime.
        My free time goes to {v} now instead of {old}.
    """),
    "drink": lines("""
        I've gone off {old}, these days it's {v}.
        {old} gives me heartburn, so I drink {v} instead.
        My new go-to drink is {v}.
        I used to drink {old}, now I only want {v}.
        I've replaced my {old} with {v}.
        No more {old} for me, I'm a {v} person now.
        I discovered {v} and never looked back at {old}.
        These days you'll find {v} in my cup, not {old}.
    """),
    "food": lines("""
        I've had enough of {old}, {v} is my new number one dish.
        I used to be all about {old}, now it's {v}.
        {v} has replaced {old} as the meal I love most.
        My taste changed, I prefer {v} to {old} these days.
        I can't look at {old} any more, give me {v}.
        I've discovered {v} and it beats {old} by far.
        Forget {old}, the best dish for me is {v} now.
        I've gone from {old} to {v} as my top meal.
    """),
    "color": lines("""
        I've grown out of {old}, {v} is the color for me now.
        I used to love {old}, these days I prefer {v}.
        {v} has taken over from {old} as the color I love.
        I repainted it all, {v} is my color instead of {old}.
        Lately I like {v} better than {old}.
        My taste in colors moved from {old} to {v}.
        I got tired of {old}, now I pick {v}.
        {old} is out, {v} is my shade now.
    """),
    "sport": lines("""
        I quit the {old} club and signed up for {v}.
        My knees can't take {old}, so I do {v} instead.
        I've traded {old} for {v} to stay fit.
        No more {old} for me, I've taken up {v}.
        I left {old} behind and train {v} these days.
        I've started {v} in place of {old}.
        Instead of {old} I go to {v} practice now.
        My new workout is {v}, {old} got boring.
    """),
    "language": lines("""
        I gave up on {old} and signed up for {v}.
        My course changed, it's {v} now instead of {old}.
        I've put {old} aside and I'm learning {v}.
        {old} was too hard, so I'm trying {v} now.
        I cancelled the {old} class and started {v}.
        These days I study {v} rather than {old}.
        I've moved on from {old} to {v}.
        Done with {old}, I'm taking up {v}.
    """),
    "phone": lines("""
        My {old} broke, so I bought {an}.
        I upgraded from my {old} to {an}.
        I've replaced the {old} with {an}.
        I finally got a new phone, {an}.
        I gave my {old} to my mum and carry {an} now.
        The {old} fell in the sea and now I've got {an}.
        I traded my old {old} for {an}.
        I'm texting from my new {v}, the {old} is gone.
    """),
    "instrument": lines("""
        I put the {old} away and took up the {v}.
        I've moved from the {old} to the {v}.
        I traded my {old} for a {v} and practice that now.
        The {old} hurt my hands, so I play the {v} instead.
        I sold my {old} and bought a {v}.
        Our band needed it, so I'm on the {v} now rather than the {old}.
        These days I play the {v}, not the {old}.
        I've given up the {old} in favor of the {v}.
    """),
    "band": lines("""
        I've gone off {old}, {v} is my top group now.
        I used to adore {old}, these days it's {v}.
        {v} has replaced {old} as my number one band.
        My new favorite group is {v}.
        I got tired of {old}, I play {v} all day now.
        {old} disappointed me, I'm a {v} fan now.
        {v} beats {old} for me these days.
        I took down the {old} poster and put up one of {v}, my top band now.
    """),
    "book": lines("""
        I put {old} down and picked up {v}.
        Done with {old}, I've begun {v}.
        I got to the end of {old} and opened {v}.
        {old} bored me, so I'm reading {v} instead.
        I gave {old} back to the library and took out {v}, I'm on page ten.
        On to the next one after {old}: I'm reading {v}.
        I turned the last page of {old} and I'm into {v} now.
        {old} goes back on the shelf, tonight I read on in {v}.
    """),
    "allergy": lines("""
        The doctors were wrong about {old}, it's {v} that I react to.
        A new test shows I'm allergic to {v} and not to {old}.
        It turns out {v} is what gives me the rash, not {old}.
        I can eat {old} again, but {v} makes me ill now.
        {old} is fine for me after all, my allergy is to {v}.
        My allergy changed from {old} to {v}.
        It was never {old}, the clinic says {v}.
        My reaction to {old} went away, and now I've got one to {v}.
    """),
    "employer": lines("""
        I've handed in my notice at {old} and signed with {v}.
        I changed companies, from {old} to {v}.
        {v} made me an offer and I left {old}.
        I started at {v} on Monday, {old} is behind me.
        My last day at {old} is over, I'm with {v} now.
        {old} let me go, but {v} hired me.
        I moved over from {old} to {v}.
        I'm at {v} these days, no more {old}.
    """),
}

RETRACTS: dict[str, tuple[str, ...]] = {
    "city": lines("""
        I gave up my flat in {old} and I'm travelling without a home.
        I moved out of {old} and don't have a place yet.
        I don't live in {old} any more, I'm between homes.
        No address for me at the moment, I've left {old}.
        Scratch what I said about living in {old}.
        My lease in {old} ended and I've nowhere to go yet.
        You can delete {old}, I don't live anywhere right now.
        I've said goodbye to {old} and live out of a suitcase.
    """),
    "job": lines("""
        They let me go, I'm not {old_an} any longer.
        I've retired, no more work as {old_an}.
        I'm out of work, my time as {old_an} is over.
        I resigned and I'm unemployed for now.
        Scratch that I'm {old_an}, I don't work any more.
        I've stopped working as {old_an}, just resting for now.
        My career as {old_an} is over and there's no new one.
        You can delete my job, I'm no longer {old_an}.
    """),
    "pet": lines("""
        My {old} died last week, the house is so quiet.
        The {old} ran away and never came back.
        I had to give up my {old}, no animals at my place now.
        Scratch that about my {old}, it lives with someone else now.
        Sadly my {old} is gone.
        No pets for me any longer, a friend took the {old}.
        I had to say goodbye to my {old}, and I won't get another.
        You can delete the {old}, I don't have it any more.
    """),
    "car": lines("""
        I got rid of my {old}, I take the bus now.
        My {old} was stolen and I won't replace it.
        The {old} is scrapped, I just walk everywhere.
        I've given up driving, the {old} is sold.
        Scratch that about my {old}, I don't have a car.
        I live without a car now, someone bought the {old}.
        My {old} is gone, I ride my bike instead.
        You can delete my car, the {old} has been towed for good.
    """),
    "hobby": lines("""
        I've lost all interest in {old}.
        I don't have time for {old} any more, or for any pastime.
        {old} is over for me, I just watch TV.
        I packed away my {old} things for good.
        Scratch that about {old}, I don't do it any longer.
        I've stopped {old}, work eats all my time.
        I'm done with {old} and haven't found anything else.
        You can delete {old}, I quit.
    """),
    "drink": lines("""
        I don't care for {old} any more, anything wet will do.
        {old} isn't my thing any longer, and nothing replaced it.
        I'm off {old}, whatever is on the table is fine.
        Scratch that about {old}, I've no preference now.
        I've had enough of {old} and I don't prefer any drink.
        You can delete {old}, I don't drink it any longer.
        {old} no longer agrees with me and I've no go-to drink.
        I gave up {old}, I just drink whatever is there.
    """),
    "food": lines("""
        I can't stand {old} any more, and no dish has taken its place.
        {old} isn't my top meal any longer, I eat anything.
        I've gone off {old}, I don't prefer any dish now.
        Scratch that about {old}, I've no favorite meal.
        I ate too much {old}, never again, and I like all else the same.
        You can delete {old}, I don't love it any longer.
        I'm over {old}, any meal is fine for me.
        {old} makes me ill these days, so I've no favorite.
    """),
    "color": lines("""
        I've gone off {old}, all colors are the same to me now.
        {old} isn't my thing any longer, I've no preference.
        Scratch that about {old}, I don't prefer any color.
        I don't feel anything for {old} any more, any color is fine.
        You can delete {old}, I've no preferred color.
        I'm over {old}, and no other color replaced it.
        No preferred shade for me now, {old} bores me.
        {old} used to be my color, now I don't have one.
    """),
    "sport": lines("""
        I hurt my back and had to give up {old}.
        I left the {old} club, no exercise for me now.
        I've quit {old}, I just sit on the sofa.
        Scratch that about {old}, I don't train any more.
        My doctor told me to stop {old}, so I do no sport at all.
        You can delete {old}, I don't do it any longer.
        {old} is over for me, and I haven't taken up anything else.
        My days of {old} are finished.
    """),
    "language": lines("""
        I gave up my {old} course, no time.
        I've quit {old}, I'm not studying any language now.
        My {old} lessons are over and I won't go on.
        Scratch that about {old}, I stopped the course.
        {old} was too hard, I've thrown away the books.
        You can delete {old}, I don't study it any longer.
        I cancelled my {old} classes for good.
        No more {old} homework for me, I dropped out.
    """),
    "phone": lines("""
        Someone stole my {old}, I'm without a phone.
        My {old} is dead and I won't buy another.
        I dropped my {old} in the lake, no phone for me now.
        I've given up on phones, the {old} is gone.
        Scratch that about my {old}, I don't have it any more.
        You can't call me, my {old} broke and I have no phone.
        I threw my {old} away, I'm living without one.
        You can delete the {old}, I don't own a phone now.
    """),
    "instrument": lines("""
        I gave my {old} away, no more music for me.
        I've stopped playing the {old}.
        My {old} is in the attic for good, I don't play now.
        Scratch that about the {old}, I quit.
        My wrist hurts, so I had to give up the {old}.
        You can delete the {old}, I don't play any longer.
        The {old} has been sold, I make no music any more.
        I'm done with the {old} and won't pick up anything else.
    """),
    "band": lines("""
        {old} lost me with that last album, I've no top band now.
        I can't hear {old} any more, and no group took their place.
        I'm not a fan of {old} any longer.
        Scratch that about {old}, I don't like any band best.
        I've gone off {old}, I mostly enjoy silence.
        You can delete {old}, I don't love them any longer.
        {old} broke up and so did my love for them, no top band now.
        My time as a fan of {old} is over.
    """),
    "book": lines("""
        I got to the end of {old} and I'm taking a break from reading.
        I gave up on {old}, nothing on my nightstand now.
        {old} is back at the library, I'm not reading anything.
        Scratch that about {old}, I put it down for good.
        I'm through with {old}, no book for me at the moment.
        You can delete {old}, I've finished it.
        I left {old} on the train, so I've nothing to read.
        Done with {old}, haven't started anything else.
    """),
    "allergy": lines("""
        I've outgrown my allergy to {old}.
        The doctor says I can have {old} again, no allergy at all.
        I don't react to {old} any more.
        The new test found nothing, {old} is fine for me.
        Scratch that about {old}, it doesn't bother me any longer.
        You can delete my allergy, {old} is no problem now.
        After the treatment {old} doesn't trouble me any more.
        Good news, the thing with {old} has cleared up.
    """),
    "employer": lines("""
        {old} fired me and I'm looking around.
        I've handed in my notice at {old}, no new company yet.
        My contract with {old} ran out.
        I don't work at {old} any more, I'm taking time off.
        Scratch that about {old}, I've left the company.
        {old} closed down, so I'm without an employer.
        You can delete {old}, I've quit there.
        I'm done with {old}, no company for me at the moment.
    """),
}
