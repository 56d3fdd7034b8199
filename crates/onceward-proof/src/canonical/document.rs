//! Random documents: JSON spelt in every way, nearly JSON, and JSON that was damaged.

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};

mod words;

use words::{EDGES, LONE, NAME_PARTS, NOT_NUMBERS, NOT_STRINGS, TOKENS};

/// The document of this seed. More than half are JSON.
pub fn document(seed: u64) -> Vec<u8> {
    let mut random = StdRng::seed_from_u64(seed);
    let kind = random.random_range(0..100);
    let gaps = *[0, 0, 10, 3].choose(&mut random).unwrap_or(&0);
    let slips = if (50..65).contains(&kind) { 20 } else { 0 };
    let mut author = Author { random, out: Vec::new(), values: 60, gaps, slips };
    if author.one_in(100) {
        author.put("\u{feff}");
    }
    match kind {
        0..65 => author.value(5),
        65..80 => {
            author.value(4);
            author.damage();
        }
        80..88 => author.deep(),
        88..95 => author.number(),
        _ => author.tokens(),
    }
    author.out
}

struct Author {
    random: StdRng,
    out: Vec<u8>,
    /// How many values may still come.
    values: usize,
    /// There is white space once in so many places; 0 means never.
    gaps: u32,
    /// There is a mistake once in so many places; 0 means never.
    slips: u32,
}

impl Author {
    fn one_in(&mut self, times: u32) -> bool {
        times != 0 && self.random.random_ratio(1, times)
    }

    fn one_of<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.random).expect("there are choices")
    }

    fn put(&mut self, text: impl AsRef<[u8]>) {
        self.out.extend_from_slice(text.as_ref());
    }

    fn gap(&mut self) {
        while self.one_in(self.gaps) {
            let space = self.one_of(b" \t\n\r");
            self.out.push(space);
        }
    }

    /// Something that should be there, and sometimes is not, or twice, or is something else.
    fn mark(&mut self, mark: u8) {
        self.gap();
        match self.one_in(self.slips) {
            true => match self.random.random_range(0..3) {
                0 => {}
                1 => self.out.extend([mark, mark]),
                _ => {
                    let token = self.one_of(&TOKENS);
                    self.put(token);
                }
            },
            false => self.out.push(mark),
        }
        self.gap();
    }

    fn value(&mut self, levels: usize) {
        self.gap();
        self.values = self.values.saturating_sub(1);
        let kinds = if levels == 0 || self.values == 0 { 6 } else { 14 };
        match self.random.random_range(0..kinds) {
            0 => {
                let word = self.one_of(&["true", "false", "null"]);
                self.put(word);
            }
            1..4 => self.number(),
            4..6 => self.string(),
            6..9 => self.array(levels - 1),
            _ => self.object(levels - 1),
        }
        self.gap();
    }

    fn array(&mut self, levels: usize) {
        self.mark(b'[');
        for element in 0..self.random.random_range(0..6) {
            if element > 0 {
                self.mark(b',');
            }
            self.value(levels);
        }
        self.mark(b']');
    }

    fn object(&mut self, levels: usize) {
        let may_repeat = self.one_in(40);
        let mut names: Vec<String> = Vec::new();
        self.mark(b'{');
        for _ in 0..self.random.random_range(0..9) {
            let name = self.name();
            if names.contains(&name) && !may_repeat {
                continue;
            }
            if !names.is_empty() {
                self.mark(b',');
            }
            self.out.push(b'"');
            for character in name.chars() {
                self.character(character);
            }
            self.out.push(b'"');
            self.mark(b':');
            self.value(levels);
            names.push(name);
        }
        self.mark(b'}');
    }

    fn name(&mut self) -> String {
        let parts = self.random.random_range(0..4);
        (0..parts).map(|_| self.one_of(&NAME_PARTS)).collect()
    }

    fn string(&mut self) {
        if self.one_in(self.slips) {
            let text = self.one_of(&NOT_STRINGS);
            return self.put(text);
        }
        self.out.push(b'"');
        // Plain text before what is special, so that it falls on every place of a word.
        let plain = if self.one_in(3) { self.random.random_range(0..40) } else { 0 };
        for _ in 0..plain {
            let letter = self.one_of(b"abcxyz019 ~-");
            self.out.push(letter);
        }
        for _ in 0..self.random.random_range(0..8) {
            let character = self.any_character();
            self.character(character);
        }
        if self.one_in(60) {
            let lone = self.one_of(&LONE);
            self.put(lone);
        }
        self.out.push(b'"');
    }

    fn any_character(&mut self) -> char {
        let range = match self.random.random_range(0..8) {
            0 => 0..0x20,
            1 => 0x80..0x800,
            2 => 0x800..0xd800,
            3 => 0xe000..0x1_0000,
            4 => 0x1_0000..0x11_0000,
            5 => return self.one_of(&['"', '\\', '/', '\u{7f}', '\u{2028}', '\u{feff}']),
            _ => 0x20..0x7f,
        };
        char::from_u32(self.random.random_range(range)).unwrap_or('?')
    }

    /// A character in one of its spellings.
    fn character(&mut self, character: char) {
        let must = matches!(character, '"' | '\\' | '\0'..='\u{1f}');
        let short = "\"\\/\u{8}\u{c}\n\r\t".find(character);
        let short = short.and_then(|at| b"\"\\/bfnrt".get(at).copied());
        match short {
            Some(letter) if self.random.random_bool(0.6) => self.out.extend([b'\\', letter]),
            _ if must || self.one_in(6) => {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let spelt = match self.random.random_bool(0.5) {
                        true => format!("\\u{unit:04x}"),
                        false => format!("\\u{unit:04X}"),
                    };
                    self.put(spelt);
                }
            }
            _ => self.put(character.encode_utf8(&mut [0; 4])),
        }
    }

    fn number(&mut self) {
        if self.one_in(self.slips) {
            let text = self.one_of(&NOT_NUMBERS);
            return self.put(text);
        }
        if self.random.random_bool(0.3) {
            self.out.push(b'-');
        }
        match self.random.random_bool(0.3) {
            true => self.out.push(b'0'),
            false => {
                let first = self.one_of(b"123456789");
                self.out.push(first);
                self.digits();
            }
        }
        if self.random.random_bool(0.4) {
            self.out.push(b'.');
            let first = self.one_of(b"0005");
            self.out.push(first);
            self.digits();
        }
        if self.random.random_bool(0.4) {
            self.exponent();
        }
    }

    fn digits(&mut self) {
        let most = self.one_of(&[1, 1, 2, 4, 20, 20, 60, 400]);
        let from: &[u8] = self.one_of(&[&b"0123456789"[..], b"00009", b"0"]);
        for _ in 0..self.random.random_range(0..most) {
            let digit = self.one_of(from);
            self.out.push(digit);
        }
    }

    fn exponent(&mut self) {
        let letter = self.one_of(b"eE");
        self.out.push(letter);
        let exponent = match self.random.random_range(0..4) {
            0 => self.one_of(&EDGES) + self.around(),
            1 => self.random.random_range(-400..400),
            _ => self.random.random_range(-20..20),
        };
        let sign = match exponent {
            ..0 => "-",
            _ => self.one_of(&["", "", "+"]),
        };
        let zeros = if self.one_in(8) { self.random.random_range(0..40) } else { 0 };
        self.put(sign);
        self.out.extend(std::iter::repeat_n(b'0', zeros));
        self.put(exponent.unsigned_abs().to_string());
    }

    /// A small difference: the length of some digits, or next to nothing.
    fn around(&mut self) -> i128 {
        match self.random.random_bool(0.5) {
            true => self.random.random_range(-1..=1),
            false => self.random.random_range(-30..=30),
        }
    }

    /// Arrays and objects around a value, about as many as may nest.
    fn deep(&mut self) {
        let levels = match self.one_in(100) {
            true => 20_000,
            false => self.one_of(&[126, 127, 127, 128, 128, 128, 129, 129, 130, 200]),
        };
        let arrays = self.one_of(&[0.0, 0.5, 1.0]);
        let mut ends = Vec::new();
        for _ in 0..levels {
            self.gap();
            match self.random.random_bool(arrays) {
                true => {
                    self.out.push(b'[');
                    ends.push(b']');
                }
                false => {
                    self.put("{\"a\":");
                    ends.push(b'}');
                }
            }
        }
        match self.one_in(3) {
            true => self.value(1),
            false => self.out.push(b'0'),
        }
        self.out.extend(ends.into_iter().rev());
    }

    fn tokens(&mut self) {
        for _ in 0..self.random.random_range(0..8) {
            let token = self.one_of(&TOKENS);
            self.put(token);
        }
    }

    /// Changes a document in one to three places.
    fn damage(&mut self) {
        for _ in 0..self.random.random_range(1..4) {
            let at = self.random.random_range(0..=self.out.len());
            match self.random.random_range(0..7) {
                0 => self.out.truncate(at),
                1 => self.insert(at),
                2 if at < self.out.len() => {
                    self.out.remove(at);
                }
                3 if at < self.out.len() => self.out[at] = self.random.random(),
                4 if at < self.out.len() => self.out[at] ^= 1 << self.random.random_range(0..8),
                5 => {
                    let from = self.random.random_range(0..=at);
                    let again = self.out[from..at].to_vec();
                    self.out.splice(at..at, again);
                }
                _ => {
                    let place = self.one_of(&[0, self.out.len()]);
                    self.insert(place);
                }
            }
        }
    }

    fn insert(&mut self, at: usize) {
        let token = self.one_of(&TOKENS);
        self.out.splice(at..at, token.iter().copied());
    }
}
