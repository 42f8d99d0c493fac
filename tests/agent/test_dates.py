"""Times that messages name: which of several answers, in what words, and when the message's own day does."""

import time
from datetime import date, timedelta

import pytest
from memories import working_memory

from memalpha.agent.copying_reader import copy_answer
from memalpha.agent.dates import find_time
from memalpha.agent.reader import ExtractiveReader, QuotingReader, RetrievedMemory, asks_for_day, asks_for_time
from memalpha.types import Hit, MemoryEntry

WHEN = (
    ("When did she go to the museum?", "I went to the museum yesterday", "2023-05-08", "7 May 2023"),
    ("When do we meet?", "We meet on Friday at 9", "2024-05-01", "the friday after 1 May 2024 at 9"),
    ("When did you see the doctor?", "I saw the doctor on Friday.", "2024-05-01", "the friday before 1 May 2024"),
    ("When does school start again?", "School starts again in September", "2024-05-01", "September 2024"),
    ("When did they move?", "They moved to Lyon in September", "2024-05-01", "September 2023"),
    ("When is the wedding?", "The wedding is on Friday, 8 May", "2024-05-01", "8 May 2024"),
    (
        "When is the wedding?",
        "My sister came yesterday. We meet next Tuesday, and the wedding is on 12 June.",
        "2024-05-01",
        "12 June 2024",
    ),
    (
        "When do you meet?",
        "My sister came yesterday. We meet next Tuesday, and the wedding is on 12 June.",
        "2024-05-01",
        "the tuesday after 1 May 2024",
    ),
    (
        "When did your sister come?",
        "My sister came yesterday. We meet next Tuesday, and the wedding is on 12 June.",
        "2024-05-01",
        "30 April 2024",
    ),
    ("When did you move to Rome?", "I moved to Rome! This year I want to learn to cook.", "2023-05-08", "8 May 2023"),
    (
        "When did Ben buy the car?",
        "I finally bought the car. Mondays are so dull without one.",
        "2023-05-08",
        "8 May 2023",
    ),
    (
        "When did Mia graduate?",
        "Mia graduated on 3 June 2021 and found a job in May 2022.",
        "2023-05-08",
        "3 June 2021",
    ),
    ("When did Mia find a job?", "Mia graduated on 3 June 2021 and found a job in May 2022.", "2023-05-08", "May 2022"),
    ("When did she move?", "I moved half a year ago.", "2024-05-15", "half a year before 15 May 2024"),
    ("When did she move?", "I moved 1.5 years ago.", "2024-05-15", "1.5 years before 15 May 2024"),
    (
        "When did she move?",
        "I moved two and a half years ago.",
        "2024-05-15",
        "two and a half years before 15 May 2024",
    ),
    ("When did she move?", "I moved eight months ago.", "2024-05-15", "September 2023"),
    ("When did she move?", "I moved 100 days ago.", "2024-05-15", "5 February 2024"),
    ("When did she move?", "I moved fifteen months ago.", "2024-05-15", "fifteen months before 15 May 2024"),
    ("When did she move?", "I moved forty-two weeks ago.", "2024-05-15", "forty-two weeks before 15 May 2024"),
    ("When did she move?", "I moved years ago.", "2024-05-15", "years before 15 May 2024"),
    ("When was the concert?", "The concert was two weeks ago and I still hum the tunes.", "2023-05-15", "1 May 2023"),
    (
        "When did Tom visit his parents?",
        "I visited my parents last Friday",
        "2023-05-08",
        "the friday before 8 May 2023",
    ),
    ("When does the course begin?", "The course begins next month.", "2023-12-20", "January 2024"),
    ("Since when has she lived in Oslo?", "I have lived in Oslo since 2019", "2023-05-08", "2019"),
    ("When is Lena's birthday?", "birthday of Lena: 3 March", "2024-05-01", "3 March 2024"),
    ("What time does the shop open?", "The shop opens at 8:30 and closes at 18:00", "2024-05-01", "8:30"),
    ("When does the shop close?", "The shop opens at 8:30 and closes at 18:00", "2024-05-01", "18:00"),
    ("On what date did I renew the passport?", "I renewed the passport on the 15th", "2024-05-20", "15 May 2024"),
    (
        "What day did Tim get the news?",
        "On Friday, I got great news about the programme!",
        "2024-01-07",
        "the friday before 7 January 2024",
    ),
    (
        "Which month was John in Italy?",
        "Have you been to Italy? I had a blast there last month.",
        "2024-01-02",
        "December 2023",
    ),
    (
        "How long ago did John start surfing?",
        "I started surfing five years ago and it's been great.",
        "2023-07-16",
        "2018",
    ),
    ("When are you on holiday?", "We are on holiday from 3 to 17 August.", "2024-05-01", "3 to 17 August 2024"),
    ("When I was ill, who cooked?", "My brother Ben cooked for you", "2024-05-01", "My brother Ben"),
    ("When did he pay the rent?", "He paid the rent this morning, not last week.", "2024-05-01", "1 May 2024"),
    ("When was the flat painted?", "We painted the flat a few days ago", "2024-05-01", "a few days before 1 May 2024"),
    ("Wann ist die Prüfung?", "Die Prüfung ist am 8. August 2024", "2024-05-01", "8. August 2024"),
    ("小明什么时候结婚?", "我2024年6月8日结婚。", "2024-05-01", "2024年6月8日"),
    ("出発はいつですか?", "出発は2024年6月8日です。", "2024-05-01", "2024年6月8日"),
    ("결혼식은 언제예요?", "결혼식은 2024년 6월 8일이에요.", "2024-05-01", "2024년 6월 8일"),
    ("¿Cuándo es la cena?", "La cena es el viernes", "2024-05-01", "viernes"),
    ("When did he find the marbles?", "He found 12 marbles yesterday", "2024-05-01", "30 April 2024"),
    ("When will the baby come?", "The baby will come in three weeks", "2024-05-01", "22 May 2024"),
    (
        "When did Mel plant the apple tree?",
        "The day before yesterday I finally planted our apple tree.",
        "2023-08-20",
        "18 August 2023",
    ),
    (
        "When will the plumber come?",
        "The plumber will come on Thursday at 14:30, he says.",
        "2024-02-05",
        "the thursday after 5 February 2024",
    ),
    (
        "When's the next rehearsal?",
        "Next rehearsal: Thursday at 7 pm",
        "2024-02-05",
        "the thursday after 5 February 2024 at 7 pm",
    ),
    ("When did Noor leave Cairo?", "I left Cairo in November and I miss it.", "2024-02-05", "November 2023"),
    ("When is the fair?", "The fair is in early March, like last year.", "2024-02-05", "March 2024"),
    ("When was the operation?", "My operation was on Tuesday, January 30th.", "2024-02-05", "30 January 2024"),
    ("When did Ola buy a boat?", "In 2021 I bought a boat, and in 2023 I sold it.", "2024-02-05", "2021"),
    (
        "When did Kim's exam take place?",
        "My exam took place last Wednesday; results come out next week.",
        "2024-02-05",
        "the wednesday before 5 February 2024",
    ),
    (
        "When do the results come out?",
        "My exam took place last Wednesday; results come out next week.",
        "2024-02-05",
        "the week after 5 February 2024",
    ),
    (
        "When did Pia adopt the kitten?",
        "I adopted a kitten! On Saturdays I volunteer at the shelter.",
        "2024-02-05",
        "5 February 2024",
    ),
    (
        "When did Ron quit smoking?",
        "I quit smoking. It is hard, but this year will be mine.",
        "2024-02-05",
        "5 February 2024",
    ),
    (
        "When did Ron call the bank?",
        "Friday was awful. I called the bank and waited for an hour.",
        "2024-02-05",
        "5 February 2024",
    ),
    ("When does the ferry leave?", "The ferry leaves at 6:45 am, and we come home on Sunday.", "2024-02-05", "6:45 am"),
    ("What time is breakfast?", "Breakfast is at 7:30, dinner at 19:00.", "2024-02-05", "7:30"),
    ("What time is dinner?", "Breakfast is at 7:30, dinner at 19:00.", "2024-02-05", "19:00"),
    (
        "Which day did Sam run the marathon?",
        "I ran the marathon on 21 April 2024 in London",
        "2024-05-05",
        "21 April 2024",
    ),
    ("What year did you meet your wife?", "I met my wife ten years ago in Delhi.", "2024-05-05", "2014"),
    ("In which month does the semester end?", "The semester ends next month", "2024-05-05", "June 2024"),
    ("How long ago did Vera start the diet?", "I started my diet three weeks ago", "2024-05-22", "1 May 2024"),
    ("Since when has Jo been vegan?", "I've been vegan since March 2020.", "2024-05-22", "March 2020"),
    ("On what day is the audition?", "The audition is tomorrow!!", "2024-05-22", "23 May 2024"),
    ("When is the festival?", "The festival runs June 14-16, 2024", "2024-05-22", "14 to 16 June 2024"),
    (
        "When was Grandpa born?",
        "Grandpa was born on May 3rd, 1940, and turned 84 this month.",
        "2024-05-22",
        "3 May 1940",
    ),
    ("When is Mum's birthday?", "mum's birthday: November 9", "2024-05-22", "9 November 2024"),
    (
        "When did the parcel arrive?",
        "The parcel arrived last night, after I had waited for two weeks.",
        "2024-05-22",
        "21 May 2024",
    ),
    ("When did he go to the gym?", "He went to the gym", "2024-05-22", "22 May 2024"),
    ("When will they marry?", "They will marry in the summer of 2025", "2024-05-22", "summer 2025"),
    (
        "When did Liv visit the Louvre?",
        "I saw the Mona Lisa a couple of days ago! The Louvre was full.",
        "2024-05-22",
        "a couple of days before 22 May 2024",
    ),
    (
        "When did Dan get the job?",
        "May I tell you something? I got the job on the 3rd floor today!",
        "2024-05-22",
        "22 May 2024",
    ),
    ("When was the car fixed?", "The garage fixed the car in March last year.", "2024-05-22", "March 2023"),
    ("When does the lease end?", "lease end: 2025-01-31", "2024-05-22", "2025-01-31"),
    ("When is the deadline?", "The deadline is 5 January.", "2023-12-12", "5 January 2024"),
    ("When did the twins walk?", "The twins walked on 28 December.", "2024-01-04", "28 December 2023"),
    ("When will Eli fly home?", "I plan to fly home on the 3rd", "2024-05-28", "3 June 2024"),
    ("When does the choir meet?", "The choir meets every Monday", "2024-05-28", "every Monday"),
    ("Wann beginnt der Kurs?", "Der Kurs beginnt am 15. September 2024", "2024-05-28", "15. September 2024"),
    ("妈妈的生日是什么时候?", "妈妈的生日是3月8日。", "2024-05-28", "3月8日"),
    ("試験はいつ?", "試験は7月12日に東京であります。", "2024-05-28", "7月12日"),
    ("여행은 언제 가요?", "우리는 8월 3일에 여행을 가요.", "2024-05-28", "8월 3일"),
    ("Quand part le train ?", "Le train part à 18:05", "2024-05-28", "18:05"),
)


def test_the_time_that_belongs_to_what_is_asked_is_copied():
    copied = {
        (question, text): copy_answer(question, [MemoryEntry("i", "semantic", text, timestamp=day)])
        for question, text, day, _ in WHEN
    }
    assert copied == {(question, text): expected for question, text, _, expected in WHEN}


@pytest.mark.parametrize(
    ("question", "text", "expected"),  # said on Wednesday, 8 May 2024
    [
        ("小明什么时候去上海?", "小明: 我明天去上海。", "2024年5月9日"),
        ("他什么时候开会?", "他后天下午3点开会", "2024年5月10日下午3点"),
        ("妈妈哪天出院的?", "妈妈前天出院了。今天休息。", "2024年5月6日"),
        ("小明什么时候去上海?", "小明: 我下周三去上海。", "2024年5月15日"),
        ("婚礼是什么时候?", "婚礼是上个星期六", "2024年5月4日"),
        ("他什么时候买的车?", "他去年8月买的车", "2023年8月"),
        ("她什么时候毕业?", "她明年毕业。", "2025年"),
        ("他什么时候搬家的?", "他三天前搬的家。", "2024年5月5日"),
        ("什么时候交房租?", "下个月3号交房租", "2024年6月3日"),
        ("会議はいつですか?", "会議は明日の午後3時です。", "2024年5月9日午後3時"),
        ("彼女はいつ引っ越しますか?", "彼女は来週の金曜日に引っ越します。", "2024年5月17日"),
        ("いつ京都に行きましたか?", "一昨日京都に行きました。", "2024年5月6日"),
        ("いつ車を買った?", "車は2年前に買った", "2022年"),
        ("試験はいつですか?", "試験は来月の12日です", "2024年6月12日"),
        ("いつ退院しましたか?", "先週の月曜に退院しました。", "2024年4月29日"),
        ("회의가 언제예요?", "회의는 내일 오후 3시예요.", "2024년 5월 9일 오후 3시"),
        ("언제 이사해요?", "다음 주 금요일에 이사해요.", "2024년 5월 17일"),
        ("언제 서울에 갔어요?", "그저께 서울에 갔어요", "2024년 5월 6일"),
        ("차를 언제 샀어요?", "차는 작년 8월에 샀어요.", "2023년 8월"),
        ("수술이 언제였어요?", "수술은 3개월 전이었어요.", "2024년 2월"),
        ("我什么时候去看牙医?", "我这周五要去看牙医。", "2024年5月10日"),
        ("爸爸哪一天动的手术?", "爸爸上上周一动的手术。", "2024年4月22日"),
        ("表哥什么时候回国?", "表哥说他大后天回国。要带礼物。", "2024年5月11日"),
        ("聚餐几月几号?", "部门聚餐定在下周四晚上7点。", "2024年5月16日晚上7点"),
        ("她什么时候开始学钢琴的?", "她五年前开始学钢琴。", "2019年"),
        ("同学会什么时候?", "同学会在2024年6月1日。", "2024年6月1日"),
        ("快递何时到?", "快递昨晚到了。", "2024年5月7日"),
        ("小王什么时候出差?", "小王两周后出差去广州。", "2024年5月22日"),
        ("什么时候种的树?", "树是今年3月种的", "2024年3月"),
        ("結婚式はいつ?", "結婚式は再来週の土曜日です。", "2024年5月25日"),
        ("歯医者は何日ですか?", "歯医者は明後日の10時です。", "2024年5月10日10時"),
        ("いつ退職した?", "父は去年の3月に退職した。", "2023年3月"),
        ("引っ越しはいつ?", "引っ越しは3日後です", "2024年5月11日"),
        ("いつ会いましたか?", "おととい駅で会いました", "2024年5月6日"),
        ("彼はいつ来ましたか?", "彼は先月来ました。", "2024年4月"),
        ("병원에 언제 가요?", "모레 오전 10시에 병원에 가요.", "2024년 5월 10일 오전 10시"),
        ("언제 결혼했어요?", "2년 전에 결혼했어요.", "2022년"),
        ("언제 만났어요?", "지난주 토요일에 만났어요.", "2024년 5월 4일"),
        ("시험이 며칠이에요?", "시험은 다음 달 3일이에요.", "2024년 6월 3일"),
        ("언제 졸업해요?", "내년 2월에 졸업해요.", "2025년 2월"),
        ("언제 왔어요?", "어제 왔어요", "2024년 5월 7일"),
        ("회식이 언제예요?", "회식은 이번 주 금요일 저녁 7시예요.", "2024년 5월 10일 저녁 7시"),
        ("旅行はいつですか?", "旅行は再来月です", "2024年7月"),
        ("妈妈什么时候去医院?", "妈妈说明天去医院。", "2024年5月9日"),
        ("他什么时候搬家的?", "他二十天前搬的家。", "2024年4月18日"),
        ("いつ引っ越した?", "\uff13日前に引っ越した", "2024年5月5日"),
        ("他什么时候搬家的?", "他100天前搬的家。", "2024年1月29日"),
        ("언제 이사했어요?", "두 달 전에 이사했어요.", "2024년 3월"),
        ("언제 이사했어요?", "일주일 전에 이사했어요.", "2024년 5월 1일"),
        ("언제 만나요?", "다음 주 월욜에 만나요", "2024년 5월 13일"),
        ("언제 만나요?", "다다음 주 월요일에 만나요", "2024년 5월 20일"),
        ("我几点吃药?", "我最近每天早上八点吃一片药。", "早上八点"),
        ("会议几点开始?", "有一点远, 会议是明天下午3点半", "下午3点半"),
        ("火车几点开?", "火车是7\uff1a30开", "7\uff1a30"),
        ("我什么时候看话剧?", "下周三晚上七点半我去看话剧。", "2024年5月15日晚上七点半"),
        ("他什么时候来?", "他明天一点也不想来", "2024年5月9日"),
        ("何時出發?", "明天下午3點出發", "2024年5月9日下午3點"),
        ("歯医者は何時ですか?", "歯医者は明日の午後3時です。1時間かかる。", "午後3時"),
        ("몇 시에 운동해요?", "매일 오전 6시에 2시간 운동해요.", "오전 6시"),
        ("회의는 몇 시예요?", "회의는 오후 세 시 반이에요", "오후 세 시 반"),
        ("시험은 몇 시예요?", "필요한 시점에 한 시민이 중요한 시험을 아홉 시에 봐요", "아홉 시"),
        ("几点睡觉?", "二十三点睡觉。", "二十三点"),
        ("我们几点要开会?", "我有三点建议。开会下午五六点要去。第二点很重要", "下午五六点"),
        ("試合は何時?", "試合は二十一時からです。八十点。", "二十一時"),
        ("在任何時候都怕什麼?", "昨天3點", "昨天3點"),
    ],
)
def test_times_in_chinese_japanese_and_korean(question, text, expected):
    entry = MemoryEntry("i", "semantic", text, timestamp="2024-05-08T09:00")
    assert copy_answer(question, [entry]) == expected


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("いつもどこで食べますか?", "いつも駅前で食べます"),
        ("他后天性的病是什么时候得的?", "后天性的病"),
        ("언제?", "그제서야 알았어요"),
        ("いつ?", "明日香さんが来た"),
        ("他什么时候来?", "一年前后"),
        ("他什么时候来?", "目前天气很好, 以前天天下雨"),
        ("他什么时候来?", "然后天黑了, 之后天气冷"),
        ("他什么时候来?", "说明日期, 说明年龄, 聪明天真, 发明年代, 以前年轻"),
        ("他什么时候来?", "晚上月亮很圆, 早上周五"),
        ("他什么时候来?", "上周一直下雨, 下周一起去, 下周日本旅行"),
        ("他什么时候来?", "两三天前, 2020年前, 几十年前"),
        ("いつ?", "先週水を買った。来週日本に行く。きょうとで会う。"),
        ("언제?", "그제야 알았어요. 지난주 목이 아팠어요. 다음주 일이 많아요"),
        ("언제?", "3일 전화했다. 1년 후배. 오늘날"),
        ("몇 시에 출발해?", "편안한 시설, 두 시민, 3시간"),
        ("What time is the game?", "It ended 110:105, as in Psalm 119:105 or 1:10000"),
    ],
)
def test_east_asian_words_that_name_no_time(question, text):
    assert find_time(question, text, date(2024, 5, 8)) is None


@pytest.mark.parametrize(
    ("question", "asks"),
    [
        ("花子はいつから働く?", True),
        ("花子はいつか行きたい所は?", False),
        ("언제 나와?", True),
        ("안나는 언제나 뭘 먹어?", False),
        ("언제든지 뭘 해?", False),
        ("시험이 며칠이에요?", True),
        ("며칠 동안 있었어?", False),
        ("Quand j'étais malade, qui a cuisiné ?", False),
        ("Cuando vivía en Roma, ¿qué comía?", False),
        ("Quando ero malata, chi ha cucinato?", False),
        ("Quando estive doente, quem cozinhou?", False),
        ("Когда я болела, кто готовил?", False),
        ("Когда свадьба, про которую говорит Анна?", True),
    ],
)
def test_words_of_time_that_ask_for_none(question, asks):
    assert asks_for_time(question) is asks


MONTHS_OF = {
    "Wann war das?": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "¿Cuándo fue?": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "C'est quand ?": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "Quando è stato?": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "Когда это было?": "января февраля марта апреля мая июня июля августа сентября октября ноября декабря",
    "Quando foi?": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
}


@pytest.mark.parametrize(
    ("question", "written", "month", "ago", "ahead"),
    [
        ("Wann war das?", "am {0}. {1} {2}", "im {1} {2}", "vor {0} Tagen", "in {0} Wochen"),
        ("¿Cuándo fue?", "el {0} de {1} de {2}", "en {1} de {2}", "hace {0} días", "dentro de {0} semanas"),
        ("C'est quand ?", "le {0} {1} {2}", "en {1} {2}", "il y a {0} jours", "dans {0} semaines"),
        ("Quando è stato?", "il {0} {1} {2}", "a {1} {2}", "{0} giorni fa", "tra {0} settimane"),
        ("Quando foi?", "em {0} de {1} de {2}", "em {1} de {2}", "há {0} dias", "daqui a {0} semanas"),
    ],
)
def test_dates_written_in_a_language_are_read_back(question, written, month, ago, ahead):
    names, said = MONTHS_OF[question].split(), date(2024, 5, 8)

    def read(text, day=said):
        hit = find_time(question, f"Ana: {text}, ok", day)
        return None if hit is None else hit.text

    def write(day, form=written):
        return form.format(day.day, names[day.month - 1], day.year)

    for number in range(366):
        day = date(2024, 1, 1) + timedelta(number)
        text = write(day).split(" ", 1)[1]
        assert read(write(day)) == text
        assert read(write(day)[:-5].removesuffix(" de"), day + timedelta(90)) == text  # without its year, the nearest
        assert read(write(day, month)) == write(day, month).split(" ", 1)[1]
    for count in range(2, 100):
        assert read(ago.format(count)) == write(said - timedelta(count)).split(" ", 1)[1]
        assert read(ahead.format(count)) == write(said + timedelta(7 * count)).split(" ", 1)[1]


@pytest.mark.parametrize(
    ("question", "text", "expected"),  # said on Wednesday, 8 May 2024
    [
        ("Wann ist Anna umgezogen?", "Ich bin vorgestern umgezogen.", "6. Mai 2024"),
        ("Wann kommt er?", "Guten Morgen! Er kommt morgen um 8 Uhr.", "9. Mai 2024 um 8 Uhr"),
        ("Wann war das Konzert?", "Das Konzert war letzten Freitag.", "Freitag vor dem 8. Mai 2024"),
        ("Seit wann wohnt er hier?", "Er wohnt seit 2019 hier.", "2019"),
        ("Wann ist der Urlaub?", "Der Urlaub ist vom 3. bis 17. August.", "3\u201317. August 2024"),
        ("Wann fängt der Kurs an?", "Der Kurs fängt nächsten Monat an", "Juni 2024"),
        ("¿Cuándo se mudó Ana?", "Me mudé hace dos semanas a Lyon", "24 de abril de 2024"),
        ("¿Cuándo viene?", "Esta mañana llamé; viene pasado mañana.", "10 de mayo de 2024"),
        ("¿Cuándo fue?", "Fue el viernes pasado a las 8", "viernes antes del 8 de mayo de 2024 a las 8"),
        ("¿En qué mes nació?", "Nació en marzo de 1990", "marzo de 1990"),
        ("Quand as-tu déménagé ?", "J'ai mangé un Mars et j'ai déménagé hier.", "7 mai 2024"),
        ("Quand commence le cours ?", "Le cours commence l'année prochaine", "2025"),
        ("Quand a-t-il vu le dentiste ?", "Il a vu le dentiste vendredi dernier", "vendredi avant le 8 mai 2024"),
        ("Quando si è trasferita?", "Si è trasferita due settimane fa", "24 aprile 2024"),
        ("Quando é a festa?", "A festa é amanhã às 20h", "9 de maio de 2024 às 20h"),
        ("Quando é a festa?", "A festa é no dia 1.º de junho", "1 de junho de 2024"),
        ("Когда праздник?", "Праздник 3-го июня", "3 июня 2024"),  # noqa: RUF001
        ("Wann war er da?", "Gestern Abend, nicht am Morgen", "7. Mai 2024"),
        ("Когда Катя вышла замуж?", "Она вышла замуж 15 февраля", "15 февраля 2024"),
        ("Когда он уволился?", "Две недели назад он уволился, но вчера был здесь", "24 апреля 2024"),
        ("Когда встреча?", "Встреча послезавтра в 10 утра", "10 мая 2024 в 10 утра"),
        ("Когда она переехала?", "Она переехала в прошлом году", "2023"),
    ],
)
def test_words_of_time_in_european_languages(question, text, expected):
    assert copy_answer(question, [MemoryEntry("i", "semantic", text, timestamp="2024-05-08")]) == expected


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("When did it end?", "gestern, hier, ayer, ieri, 3 mars, vor zwei Wochen, le 3 mai, hace dos días, morgen"),
        ("Wann ist das Spiel?", "Ist er hier? Guten Morgen! Am Morgen gab es Mars."),
        ("¿Cuándo es?", "Por la mañana hace dos cafés"),
        ("Quand était-ce ?", "Il y a deux ans et demi. Le mars est bon, il y a deux chats"),
        ("Quand même, qui vient ?", "Il vient demain"),
        ("Когда это было?", "Было в 1990-\u0445 годах"),
        ("Wann war das?", "am 31. Februar, vor 1,5 Jahren, vor einem halben Jahr"),
    ],
)
def test_words_of_other_languages_or_other_meaning_name_no_time(question, text):
    assert find_time(question, text, date(2024, 5, 8)) is None


@pytest.mark.parametrize("reader", [ExtractiveReader(), QuotingReader()])
@pytest.mark.parametrize(
    ("content", "question", "expected"),
    [
        ("birthday: 3 March", "When is my birthday?", "3 March"),
        ("dentist: on Friday at 9", "When is the dentist?", "the friday after 1 May 2024 at 9"),
        ("trip: Oslo", "When was the trip?", "2024-05-01"),
        ("trip: September", "When is the trip?", "September 2024"),
        ("car: a Volvo of the nineties", "What year is the car?", "a Volvo of the nineties"),
        ("We meet on Friday", "When do we meet?", "the friday after 1 May 2024"),
        ("We meet at 9.", "When do we meet?", "We meet at 9."),
        ("We moved in September", "When did we move?", "September 2023"),
        ("We moved in May last year", "When did we move?", "May 2023"),
        ("We moved on 3 March.", "When did we move?", "We moved on 3 March."),
        ("We swam yesterday, and the trial is on 3 March.", "When is the trial?", None),
        ("We swam yesterday, and the trial is on 3 March.", "When was it that we swam?", "30 April 2024"),
        ("When I was ill, Ben cooked", "When I was ill, who cooked?", "When I was ill, Ben cooked"),
    ],
)
def test_an_entry_that_names_a_time_is_not_answered_by_its_own_day(reader, content, question, expected):
    (answer,) = reader.answer([(question, working_memory(content))])
    assert answer.text == (expected or content)


def test_words_that_are_no_dates():
    for text in ("12 marbles", "mardi 5", "martes 5", "3 decks", "octopus 8", "on the 3rd floor", "may I?"):
        assert find_time("When was it?", text, date(2024, 5, 1)) is None


def test_which_questions_the_day_of_a_message_answers():
    asking = (
        "When?",
        "when's lunch",
        "And when was it?",
        "Since when?",
        "On what date did I go?",
        "How long ago was it?",
        "Do you remember when I told you that?",
        "Can you tell me when my flight is?",
        "Please remind me when we met.",
    )
    assert [question for question in asking if not asks_for_day(question)] == []
    others = (
        "When I was ill, who cooked?",
        "When it rains, does she run?",
        "When Ana moved to Rome, did she sell the car?",
        "Whenever I go, what do I take?",
        "What year is it?",
        "What day care is near?",
        "Remember when I was ill, who cooked?",
        "Do you know what I do when it rains?",
        "Do you remember when I lost my keys? Where were they?",
        "Tell me when it rains and who cooks.",
    )
    assert [question for question in others if asks_for_day(question)] == []


@pytest.mark.parametrize(
    "text", ["1 May at 9 ", "may, ", "on Friday at 9, and ", ". " * 9, "12-1-1", "3. bis 3. bis ", "il y a environ 3 "]
)
def test_long_texts_are_read_in_a_moment(text):
    start = time.process_time()
    for question in ("When is may?", "Wann?", "Quand ?"):
        find_time(question, text * 20_000, date(2024, 5, 1), (50_000, 50_003))
    assert time.process_time() - start < 2


@pytest.mark.parametrize("reader", [ExtractiveReader(), QuotingReader()])
def test_in_other_languages_the_day_stands_behind_a_sentence_without_a_time(reader):
    questions = {
        "Quando hanno prenotato il volo?": "Abbiamo prenotato il volo per Lisbona.",
        "飛行機はいつ予約した?": "リスボンへの飛行機を予約した。",
    }
    for question, said in questions.items():
        entry = MemoryEntry("e#1", "episodic", said, timestamp="2026-06-16T20:20")
        (answer,) = reader.answer([(question, RetrievedMemory((Hit(entry, 1.0),)))])
        assert answer.text == f"{said} (2026-06-16)"
