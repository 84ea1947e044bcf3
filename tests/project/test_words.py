"""Words in the bytes of files."""

from trainify.facts import words


def test_every_place_of_every_word_also_inside_of_another() -> None:
    whole, part = words.declare(b"grad_mode(", b"mode(")
    data = b"grad_mode(x, mode(y))"
    assert words.places(data, whole) == [0]
    assert words.places(data, part) == [5, 13]
    assert words.places(b"mode", part) == ()


def test_words_declared_after_a_file_was_read_are_found_in_it() -> None:
    data = b"a_word_of_the_run(1)"
    assert not words.places(data, *words.declare(b"another_word_of_the_run"))
    assert words.places(data, *words.declare(b"a_word_of_the_run")) == [0]
