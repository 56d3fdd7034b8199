//! What random documents are made of.

/// Parts of member names. Names made of few parts often begin alike, and are sometimes equal.
pub(super) const NAME_PARTS: [&str; 26] = [
    "a",
    "b",
    "aa",
    "aaaaaaa",
    "aaaaaaaa",
    "aaaaaaaaa",
    "A",
    "0",
    "9",
    "10",
    " ",
    "/",
    "\"",
    "\\",
    "\u{0}",
    "\u{8}",
    "\n",
    "\u{1f}",
    "\u{7f}",
    "\u{e9}",
    "\u{d7ff}",
    "\u{e000}",
    "\u{fb33}",
    "\u{ffff}",
    "\u{10000}",
    "\u{10ffff}",
];

/// Where exponents stop to fit.
pub(super) const EDGES: [i128; 8] = [
    i64::MAX as i128,
    i64::MIN as i128,
    u64::MAX as i128,
    i32::MAX as i128,
    i32::MIN as i128,
    1_000_000_000_000_000_000,
    -1_000_000_000_000_000_000,
    10_000_000_000_000_000_000_000_000_000_000,
];

/// What looks like a number and is none in JSON.
pub(super) const NOT_NUMBERS: [&str; 16] = [
    "01",
    "-",
    "+1",
    ".5",
    "1.",
    "1.e1",
    "1e",
    "1e+",
    "1E-",
    "--1",
    "-01",
    "0x1f",
    "1_000",
    "NaN",
    "-Infinity",
    "00",
];

/// What looks like a string and is none in JSON.
pub(super) const NOT_STRINGS: [&[u8]; 14] = [
    b"\"",
    b"\"\\\"",
    b"\"\\x\"",
    b"\"\\U0041\"",
    b"\"\\u12\"",
    b"\"\\u12g4\"",
    b"\"\\u+123\"",
    b"'a'",
    b"\"\x01\"",
    b"\"\n\"",
    b"\"\xff\"",
    b"\"\xc0\x80\"",
    b"\"\xed\xa0\x80\"",
    b"\"\xf4\x90\x80\x80\"",
];

/// Half a surrogate pair, or two in the wrong order.
pub(super) const LONE: [&str; 7] = [
    "\\ud800",
    "\\uDFFF",
    "\\udc00\\ud800",
    "\\ud83d\\u0041",
    "\\ud83dx",
    "\\ud83d\\n",
    "\\ud83d\\ud83d\\ude00",
];

/// What documents are made of, and what does not belong there.
pub(super) const TOKENS: [&[u8]; 30] = [
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"\"\"",
    b"\"a\"",
    b"\"b\"",
    b"0",
    b"1",
    b"-1.50",
    b"1e5",
    b"true",
    b"false",
    b"null",
    b" ",
    b"\n",
    b"\t",
    b"\r",
    b"\x0b",
    b"\x0c",
    b"\xc2\xa0",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"//",
    b"tru",
    b"True",
    b"\\",
    b"\0",
];
