"""The terms that a question names, and the passages that contain them."""

import pytest

from mcp_servers.retriever.coverage import Coverage, read_question
from mcp_servers.retriever.lexical import query_vector


def coverage(question: str, passage: str) -> Coverage | None:
    """Return the passage's coverage of a question whose words are all equally rare."""
    tokens = frozenset(query_vector(question).indices)
    parsed_question = read_question(question, tokens)
    return parsed_question.coverage(passage, frozenset(), parsed_question.weigh(dict.fromkeys(tokens, 1.0)))


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("How long is a monthly pass valid?", "A ten-trip card is valid for eighteen months from the first use."),
        ("What does it cost to charge an electric bicycle?", "Charging an electric car costs 11 crowns an hour."),
        ("Who is the dentist on call?", "The doctor on call is Dr Sollen, who is at the desk."),
        ("Was kostet die Seniorenkarte im Jahr?", "Die Inselkarte kostet im Jahr 1 460 Kronen."),
        ("Auf welcher Spur stehen Viehtransporter?", "Die Fahrzeuge stehen auf Spur 9."),
        ("采购委员会主任是谁？", "采购委员会由七人组成，表决须五人以上同意。"),
        ("澄屿基地的产假有多少天？", "澄屿基地的年休假为九天。"),
        ("Quel est le prix de la carte senior ?", "Le prix de la carte est de 40 euros pour une année."),
        ("Quelle est l’amende pour un retard ?", "Un retard est signalé à l'accueil, et le livre est dans le port."),
        ("Qual è l'indirizzo dell'azienda?", "Il sito della scuola è la pagina di cui si parla, e non altro."),
        ("How do I bake sourdough bread?", "To bake cake you need an oven, and you get it from us."),
        ("¿Cuánto cuesta la tarjeta para mayores?", "La tarjeta cuesta 40 euros para un año, y no es para el mes."),
    ],
)
def test_a_near_miss_lacks_a_thing_named_in_the_question(question: str, passage: str) -> None:
    result = coverage(question, passage)
    assert result is not None
    assert result.lacking > 0.15


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("How long is a ten-trip card valid?", "A ten-trip card is valid for eighteen months from its first use."),
        ("Where is the co-pilot?", "Two pilots sit in the cockpit: the pilot and the -co-pilot-."),
        ("Où sont les écoles ?", "L'école est dans le port, et les enfants sont là."),
        ("Où est l’école ?", "Une école est dans le port, et les enfants sont là."),
        ("Quelle est l'amende pour un retard ?", "Une amende est due pour le retard, et c’est la règle."),
        ("Qual è l'indirizzo dell'azienda?", "Un indirizzo di questa azienda è nella pagina, e non si cambia."),
        ("Quina és l'hora d'obertura?", "Una hora és al cartell, i una obertura és als matins."),
        ("Wat is de prijs van één ei?", "De prijs van eieren is een euro per ei."),
        ("Which ship replaces the Lindrake?", "The Petrach Maid is the relief ship for the Lindrake."),
        ("When does trip 4101 reach Skarrow?", "Trip 4101: the boat is at Skarrow at 06:31."),
        ("Who decides to close the northern landings?", "The master may close a landing in the north of the island."),
        ("How deep is the outer berth?", "The outer berth has 7.64 m."),
        ("How much of a hotel bill is paid?", "A hotel in London is paid up to 165 pounds a night."),
        ("Cannot children travel alone as well?", "Children may travel alone from the age of twelve."),
        ("Wie schwer darf Handgepäck sein?", "Das Handgepäck bis 23 kg ist frei."),
        ("Wo stehen Fahrzeuge mit der orangefarbenen Tafel?", "Ein Fahrzeug mit orangefarbener Tafel ist auf Spur 9."),
        ("Wer öffnet das Hafentor?", "Die Hafentore öffnet der Wächter, der auch die Schlüssel hat."),
        ("西楼单人间的月租是多少？", "西楼 | 单人间 | 月租 410"),
        ("六万元以上的采购需要几家比价？", "六万元以上的采购须三家比价"),
    ],
)
def test_an_answering_passage_misses_nothing_named_in_the_question(question: str, passage: str) -> None:
    result = coverage(question, passage)
    assert result is not None
    assert result.lacking == 0
    assert result.held >= 0.5


@pytest.mark.parametrize(
    ("question", "passage"),
    [
        ("How long is the annual leave of the crew?", "年休假满一年后为九天，满五年后为十四天。"),
        ("年休假有多少天？", "The annual leave of the crew is nine days."),
        ("Wie viele Gasflaschen darf ein Wohnmobil mitführen?", "Of gas bottles there may be two per camper at most."),
    ],
)
def test_word_coverage_is_unknown_for_a_passage_in_another_language(question: str, passage: str) -> None:
    assert coverage(question, passage) is None


@pytest.mark.parametrize(
    ("question", "number", "name"),
    [
        ("What is the telephone number of the harbour?", "The harbour: 0550 600 145", "The harbour is open until six."),
        ("Wie lautet die Telefonnummer des Hafens?", "Der Hafen: 03528/47110", "Der Hafen ist bis sechs Uhr auf."),
        ("客服热线的电话号码是多少？", "客服热线为 400-820-6173", "客服热线每天8:00至20:00有人接听"),
    ],
)
def test_a_telephone_number_matches_the_word_telephone(question: str, number: str, name: str) -> None:
    answer, distractor = coverage(question, number), coverage(question, name)
    assert answer is not None
    assert distractor is not None
    assert answer.lacking == 0
    assert answer.held > distractor.held


def test_a_telephone_number_is_not_a_phone_bill() -> None:
    result = coverage("Who pays my phone bill?", "Tell your manager by telephone: 0550 600 145. We pay your salary.")
    assert result is not None
    assert result.lacking > 0.3


def test_a_passage_about_hotels_misses_little_of_a_hotel_bill() -> None:
    question, passage = "How do I claim a hotel bill?", "Hotels: Book through the portal, and claim it."
    tokens = frozenset(query_vector(question).indices)
    parsed_question = read_question(question, tokens)
    weights = parsed_question.weigh(dict.fromkeys(tokens, 1.0))
    hotel_coverage, train_coverage = (
        parsed_question.coverage(passage, frozenset(), weights, heading) for heading in ("Hotels", "Trains")
    )
    assert hotel_coverage is not None
    assert train_coverage is not None
    assert 0 < hotel_coverage.lacking < train_coverage.lacking


def test_a_missing_word_before_a_chinese_thing_weighs_less_than_the_missing_thing() -> None:
    without_word, without_thing = coverage("客服热线在哪里？", "热线在二楼"), coverage("客服热线在哪里？", "客服在二楼")
    assert without_word is not None
    assert without_thing is not None
    assert 0 < without_word.lacking < without_thing.lacking


def test_a_missing_word_before_the_thing_weighs_less_than_the_missing_thing() -> None:
    without_word = coverage("How many days of annual leave do I get?", "The staff have 27 days of leave that are paid.")
    without_thing = coverage(
        "How many days of annual leave do I get?", "The annual meeting takes two days and is paid."
    )
    assert without_word is not None
    assert without_thing is not None
    assert without_word.lacking < without_thing.lacking


def test_a_word_with_the_same_start_is_another_word() -> None:
    result = coverage("What does a cat cost?", "The cattle in the catering wagon cost 20 crowns.")
    assert result is not None
    assert result.lacking > 0.3


@pytest.mark.parametrize(
    ("question", "is_missing"),
    [
        ("What is the CEO's salary?", True),
        ("When does the office of Norham close?", True),
        ("When does the office close in June?", False),
        ("When does the office close?", False),
        ("WHEN DOES THE OFFICE CLOSE?", False),
        ("Wann schließt das Kontor?", False),  # every German noun has a capital letter
    ],
)
def test_a_name_in_no_passage_is_missing(question: str, is_missing: bool) -> None:
    parsed_question = read_question(question, frozenset(query_vector(question).indices))
    passage_tokens = [
        frozenset(query_vector(text).indices) for text in ("The office closes at ten.", "The salary of the crew.")
    ]
    assert parsed_question.missing_name(passage_tokens) is is_missing


def test_a_part_of_a_compound_is_not_the_compound() -> None:
    part_coverage = coverage("Wo liegt der Pausenraum?", "Der Raum für die Pause liegt im Haus.")
    compound_coverage = coverage("Wo liegt der Raum?", "Der Pausenraum liegt im Haus und ist offen.")
    assert part_coverage is not None
    assert part_coverage.lacking > 0
    assert compound_coverage is not None
    assert compound_coverage.lacking > 0  # four letters may occur inside any word


@pytest.mark.parametrize("question", ["", "7", "?!…", "Ｈ", "مرحبا", "שלום 微风 x", "a " * 5_000, "微" * 2_000])
def test_odd_questions_have_a_coverage_between_zero_and_one(question: str) -> None:
    result = coverage(question, "The crew may ask for it. 船员可以 7")
    assert result is None or (0 <= result.held <= 1 and 0 <= result.lacking <= 1)
