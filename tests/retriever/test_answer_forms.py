"""The form of answer that a question asks for, and the texts that have one."""

import pytest

from mcp_servers.answer_forms import asked_form, has_form


@pytest.mark.parametrize(
    ("question", "answer", "distractor"),
    [
        (
            "What does a parrot cost?",
            "A parrot travels for 11 crowns.",
            "Parrots travel in a box; five per cent do not.",
        ),
        ("What does a child pay?", "Below the age of six they travel free.", "Children sit beside their parents."),
        ("Was kostet die Inselkarte?", "Inselkarte | 1 460", "Die Inselkarte gilt im Sommer."),
        ("圆形控制器的价格是多少？", "圆形控制器 | TB-5120 | 720元", "圆形控制器有彩色灯"),
        ("How loud is the unit?", "It stays below 33 decibels.", "The unit has four levels."),
        ("How heavy is the exchanger?", "The exchanger weighs 23 kilograms.", "The exchanger lasts eight years."),
        ("How often is a drill held?", "A drill is held every nine days.", "A drill lasts nine minutes."),
        ("How long is the probation?", "Probation is three months.", "Probation ends with a talk."),
        ("When does the Sorrel Tide go to the yard?", "Sorrel Tide follows in January.", "Sorrel Tide, Norham."),
        ("Ab welcher Temperatur wird gestreut?", "Ab minus vier Grad.", "Gestreut wird mit Splitt."),
        ("What is the phone number of the desk?", "Call 0550 600 145.", "The desk is open until six."),
        ("产假有多少天？", "产假为九十八天", "产假由直属主管审批"),
        ("Wie hoch ist der Zuschlag an Feiertagen?", "An Feiertagen 60 %.", "Feiertage regelt das Land."),
        ("Wie hoch ist der Mindestdruck?", "Mindestens acht bar.", "Der Druck wird geprüft."),
        ("When does the desk open?", "The desk opens at 9 am.", "The desk is white."),
        ("When is the office open?", "Office: Mon-Fri, 9 to 17", "The office is on the quay."),
        ("Wann ist Betriebsruhe?", "Betriebsruhe: 24.12. und 31.12.", "Die Betriebsruhe ist bezahlt."),
        ("How long does delivery take?", "Delivery is made overnight.", "Delivery is made by van."),
        ("How often is the filter changed?", "At 500-hour intervals.", "The filter is white."),
        ("What discount do members get?", "Members save 5 EUR.", "Members sit in front."),
        ("What percentage is refunded?", "Three quarters are refunded.", "The fee is refunded."),
        ("What is the phone number of the desk?", "Desk: ext. 12", "The desk has one phone."),
        ("How high is the deposit?", "A deposit of two rents is due.", "The deposit is paid back."),
        ("How fast is the ferry?", "The ferry makes 21 kn.", "The ferry is blue."),
        ("What is the length of the notice period?", "Notice is four weeks.", "Notice is given in writing."),
        ("How far in advance must I book?", "Book two weeks ahead.", "Book at the desk."),
        ("How deep is the berth?", "The berth has 12 ft of water.", "The berth has three lamps."),
        ("How heavy is the box?", "It weighs 52 lb.", "It has two handles."),
        ("What does the pass cost?", "The pass is CHF 500.", "The pass is for members."),
        ("How many cabins are there?", "There are fourteen cabins.", "The cabins have beds."),
        ("Wie viele Plätze gibt es?", "Es gibt zweihundert Plätze.", "Die Plätze sind weich."),
    ],
)
def test_only_a_text_with_the_asked_form_of_answer_is_relevant(question: str, answer: str, distractor: str) -> None:
    form = asked_form(question)
    assert form is not None
    assert has_form(answer, form)
    assert not has_form(distractor, form)


def test_an_amount_stands_for_a_price_but_not_for_a_salary() -> None:
    cost, salary = asked_form("What does a parrot cost?"), asked_form("What is the salary of a guard?")
    assert cost is not None
    assert cost is salary
    assert cost.words.fullmatch("cost")
    assert not cost.words.fullmatch("salary")


def test_how_much_of_something_else_is_no_question_for_money() -> None:
    assert asked_form("From how much delay is the fare paid back?") == asked_form("How much grit is there?")


@pytest.mark.parametrize(
    "question", ["Who pays my phone bill?", "Where may people smoke?", "谁审批请假？", "", "!" * 5_000]
)
def test_a_question_for_a_person_or_a_place_has_no_answer_form(question: str) -> None:
    assert asked_form(question) is None
    assert has_form("", None)
