import pytest

from strategies.core.parsing import normalized
from strategies.core.terms import informative_share, stem, terms, width
from strategies.memory.ranking import Date, dates, leading_date, speaker


@pytest.mark.parametrize(
    ("question", "told"),
    [
        ("camp", "camping"), ("plan", "planned"), ("family", "families"), ("bake", "baking"), ("box", "boxes"),
        ("paint", "painter"), ("quick", "quickly"), ("adopt", "adoption"), ("story", "stories"), ("pass", "passes"),
    ],
)  # fmt: skip
def test_forms_of_an_english_word_have_one_stem(question: str, told: str) -> None:
    assert stem(question) == stem(told)


@pytest.mark.parametrize("word", ["bus", "ring", "red", "was", "glass", "naïve", "v2", "x" * 65 + "ing"])
def test_words_that_only_look_inflected_stay(word: str) -> None:
    assert stem(word) == word


def test_an_identifier_is_found_as_a_whole_and_by_its_parts() -> None:
    assert terms("src/app/parseHeader.py") == ["src/app/parseheader.py", "src", "app", "pars", "head", "py"]
    assert "max_tokens" in terms("set max_tokens to 5")


def test_words_that_say_nothing_are_no_terms() -> None:
    assert terms("what did you say about this?") == []
    assert terms("这是什么") == []


def test_chinese_runs_become_grams_of_up_to_four_characters() -> None:
    assert terms("选型方案书")[5:] == [
        "选型",
        "型方",
        "方案",
        "案书",
        "选型方",
        "型方案",
        "方案书",
        "选型方案",
        "型方案书",
    ]


def test_scripts_are_parted_where_they_meet() -> None:
    assert terms("用Redis缓存")[:1] == ["用"]
    assert "redis" in terms("用Redis缓存")


def test_width_and_accents_do_not_matter() -> None:
    assert terms("Ｍüller ２０２４") == terms("Muller 2024")


def test_an_n_gram_tells_as_much_as_its_characters_do() -> None:
    assert informative_share("缓存", 0.3) == 1.0
    assert informative_share("叫什么", 0.3) == pytest.approx(1 / 3)
    assert informative_share("猫", 0.3) == 0.3
    assert informative_share("cat", 0.3) == 1.0


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Caroline: I went swimming", "caroline"),
        ("[1:56 pm on 8 May, 2023] Mel: hi", "mel"),
        ("小明：你好", "小明"),
        ("see https://example.com", ""),
        ("at 10:30 we met", ""),
        ("no one speaks here", ""),
    ],
)
def test_a_speaker_is_who_the_text_begins_with(text: str, name: str) -> None:
    assert speaker(text) == name


@pytest.mark.parametrize(
    ("text", "date"),
    [
        ("[1:56 pm on 8 May, 2023] Mel: hi", Date(2023, 5, 8)),
        ("2023-05-08 we met", Date(2023, 5, 8)),
        ("On March 3rd, 2024", Date(2024, 3, 3)),
        ("in August", Date(0, 8, 0)),
        ("2024年3月15日", Date(2024, 3, 15)),
        ("八月或12月3号", Date(0, 12, 3)),
    ],
)
def test_dates_are_read_in_several_forms(text: str, date: Date) -> None:
    assert date in dates(text)


def test_a_number_that_can_be_no_month_makes_no_date() -> None:
    assert dates("version 2023-45-99 of 13月") == []


def test_a_message_is_dated_by_a_day_at_its_beginning_only() -> None:
    assert leading_date("[8 May, 2023] Mel: hi") == Date(2023, 5, 8)
    assert leading_date("in May we went away") is None
    assert leading_date("a" * 80 + " 8 May, 2023") is None


def test_dates_meet_where_no_field_that_both_tell_differs() -> None:
    assert Date(0, 5, 0).meets(Date(2023, 5, 8))
    assert not Date(0, 5, 9).meets(Date(2023, 5, 8))
    assert not Date(2023, 0, 0).meets(Date(2023, 5, 8))


def test_texts_are_compared_without_what_separates_words() -> None:
    assert normalized("Use  Redis, please!") == normalized("use redis please")


def test_a_character_of_a_script_without_spaces_is_three_wide() -> None:
    assert (width("abc"), width("缓存")) == (3, 6)
