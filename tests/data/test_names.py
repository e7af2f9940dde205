from polaformer.data.names import counted, printable


def test_what_breaks_lines_or_fails_to_encode_is_escaped():
    assert printable("a\x1b[2J\n\x85\u2028\udcff.png") == r"a\x1b[2J\n\x85\u2028\udcff.png"


def test_other_names_stay_as_they_are():
    for name in ("photo 1.png", "Käfer", "犬", "9:41:00\u202fAM.png", "👩\u200d🚀"):
        assert printable(name) == name


def test_counted():
    assert [counted(number, "image") for number in (0, 1, 2)] == ["0 images", "1 image", "2 images"]
