//! The canonical form of JSON once more, written from its description alone: read into a tree, then
//! write the tree. Slow and simple, so that it can be checked by reading.

use clap::ValueEnum;

/// How deep arrays and objects may nest.
const DEPTH_MAX: usize = 128;

/// A mistake that this implementation makes on request: what the comparison must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Slip {
    /// Sorts names by their UTF-8 bytes.
    Utf8Order,
    /// Sorts names as they were spelt, escapes included.
    SpeltOrder,
    /// Takes the last of two members of one name.
    LastName,
    /// Keeps seventeen digits of a number.
    SeventeenDigits,
    /// Refuses the smallest exponent that fits.
    ShortExponent,
    /// Keeps the sign of a zero.
    NegativeZero,
    /// Takes half a surrogate pair for a replacement character.
    HalfPair,
    /// Lets arrays and objects nest once more.
    OneDeeper,
    /// Escapes U+007F.
    EscapedDelete,
    /// Skips a byte order mark.
    ByteOrderMark,
    /// Takes a form feed for white space.
    FormFeed,
}

/// The canonical form of `body`, or nothing if it has none.
pub fn canonical(body: &[u8], slip: Option<Slip>) -> Option<Vec<u8>> {
    let mut text = std::str::from_utf8(body).ok()?;
    if slip == Some(Slip::ByteOrderMark) {
        text = text.trim_start_matches('\u{feff}');
    }
    let mut reader = Reader { rest: text.chars().collect(), slip };
    reader.rest.reverse();
    let value = reader.value(0)?;
    reader.space();
    if !reader.rest.is_empty() {
        return None;
    }
    let mut out = String::new();
    write(&value, slip, &mut out);
    Some(out.into_bytes())
}

enum Value {
    /// `true`, `false`, `null`, or a number in its canonical form.
    Plain(String),
    Text(String),
    Array(Vec<Value>),
    Object(Vec<Member>),
}

struct Member {
    name: String,
    spelt: String,
    value: Value,
}

/// What is left of a document, last character first.
struct Reader {
    rest: Vec<char>,
    slip: Option<Slip>,
}

impl Reader {
    fn next(&mut self) -> Option<char> {
        self.rest.pop()
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.rest.last() == Some(&wanted);
        if found {
            self.rest.pop();
        }
        found
    }

    fn space(&mut self) {
        while let Some(' ' | '\t' | '\n' | '\r') = self.rest.last() {
            self.rest.pop();
        }
        if self.slip == Some(Slip::FormFeed) && self.take('\u{c}') {
            self.space();
        }
    }

    /// A value with white space before it, inside `depth` arrays and objects.
    fn value(&mut self, depth: usize) -> Option<Value> {
        self.space();
        match self.rest.last()? {
            '{' => self.object(depth + 1),
            '[' => self.array(depth + 1),
            '"' => self.text().map(|(text, _)| Value::Text(text)),
            '-' | '0'..='9' => self.number().map(Value::Plain),
            _ => ["true", "false", "null"]
                .into_iter()
                .find(|word| word.chars().eq(self.rest.iter().rev().copied().take(word.len())))
                .map(|word| {
                    self.rest.truncate(self.rest.len() - word.len());
                    Value::Plain(word.to_owned())
                }),
        }
    }

    fn too_deep(&self, depth: usize) -> bool {
        depth > DEPTH_MAX + usize::from(self.slip == Some(Slip::OneDeeper))
    }

    fn array(&mut self, depth: usize) -> Option<Value> {
        self.next();
        if self.too_deep(depth) {
            return None;
        }
        let mut elements = Vec::new();
        self.space();
        if self.take(']') {
            return Some(Value::Array(elements));
        }
        loop {
            elements.push(self.value(depth)?);
            self.space();
            match self.next()? {
                ',' => {}
                ']' => return Some(Value::Array(elements)),
                _ => return None,
            }
        }
    }

    fn object(&mut self, depth: usize) -> Option<Value> {
        self.next();
        if self.too_deep(depth) {
            return None;
        }
        let mut members: Vec<Member> = Vec::new();
        self.space();
        if self.take('}') {
            return Some(Value::Object(members));
        }
        loop {
            self.space();
            let (name, spelt) = self.text()?;
            self.space();
            if !self.take(':') {
                return None;
            }
            let value = self.value(depth)?;
            if members.iter().any(|member| member.name == name) {
                if self.slip != Some(Slip::LastName) {
                    return None;
                }
                members.retain(|member| member.name != name);
            }
            members.push(Member { name, spelt, value });
            self.space();
            match self.next()? {
                ',' => {}
                '}' => return Some(Value::Object(members)),
                _ => return None,
            }
        }
    }

    /// A string: what it means, and how it was spelt.
    fn text(&mut self) -> Option<(String, String)> {
        if !self.take('"') {
            return None;
        }
        // A string is UTF-16, so that two escapes can make one character.
        let mut units = Vec::new();
        let mut spelt = String::new();
        loop {
            let character = self.next()?;
            match character {
                '"' => break,
                '\0'..='\u{1f}' => return None,
                '\\' => {
                    let unit = self.escape()?;
                    spelt.push_str(&format!("\\u{unit:04x}"));
                    units.push(unit);
                }
                _ => {
                    spelt.push(character);
                    units.extend_from_slice(character.encode_utf16(&mut [0; 2]));
                }
            }
        }
        let meant = match self.slip {
            Some(Slip::HalfPair) => String::from_utf16_lossy(&units),
            _ => String::from_utf16(&units).ok()?,
        };
        Some((meant, spelt))
    }

    fn escape(&mut self) -> Option<u16> {
        let character = match self.next()? {
            plain @ ('"' | '\\' | '/') => plain,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let mut unit = 0;
                for _ in 0..4 {
                    unit = unit * 16 + self.next()?.to_digit(16)?;
                }
                return u16::try_from(unit).ok();
            }
            _ => return None,
        };
        u16::try_from(u32::from(character)).ok()
    }

    fn digits(&mut self) -> String {
        let mut digits = String::new();
        while let Some(digit @ '0'..='9') = self.rest.last() {
            digits.push(*digit);
            self.rest.pop();
        }
        digits
    }

    /// A number as sign, digits without zeros at either end, and a power of ten if it is not one.
    fn number(&mut self) -> Option<String> {
        let sign = if self.take('-') { "-" } else { "" };
        let whole = self.digits();
        if whole.is_empty() || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        let mut fraction = String::new();
        if self.take('.') {
            fraction = self.digits();
            if fraction.is_empty() {
                return None;
            }
        }
        let mut written = (false, String::new());
        if self.take('e') || self.take('E') {
            let negative = self.take('-');
            if !negative {
                self.take('+');
            }
            written = (negative, self.digits());
            if written.1.is_empty() {
                return None;
            }
        }
        self.decimal(sign, &whole, &fraction, written)
    }

    fn decimal(
        &self,
        sign: &str,
        whole: &str,
        fraction: &str,
        (negative, written): (bool, String),
    ) -> Option<String> {
        // What was sent must fit, in a zero too.
        let written = format!("{}0{written}", if negative { "-" } else { "" });
        let written: i64 = written.parse().ok()?;
        let all = format!("{whole}{fraction}");
        let mut digits = all.trim_matches('0');
        if digits.is_empty() {
            let signed = self.slip == Some(Slip::NegativeZero);
            return Some(format!("{}0", if signed { sign } else { "" }));
        }
        if self.slip == Some(Slip::SeventeenDigits) {
            digits = digits.get(..17).unwrap_or(digits).trim_end_matches('0');
        }
        let moved = all.len() - all.trim_end_matches('0').len();
        let moved = i128::try_from(moved).ok()? - i128::try_from(fraction.len()).ok()?;
        let exponent = i64::try_from(i128::from(written) + moved).ok()?;
        if self.slip == Some(Slip::ShortExponent) && exponent == i64::MIN {
            return None;
        }
        Some(match exponent {
            0 => format!("{sign}{digits}"),
            _ => format!("{sign}{digits}e{exponent}"),
        })
    }
}

fn write(value: &Value, slip: Option<Slip>, out: &mut String) {
    match value {
        Value::Plain(word) => out.push_str(word),
        Value::Text(text) => write_text(text, slip, out),
        Value::Array(elements) => {
            out.push('[');
            for (at, element) in elements.iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write(element, slip, out);
            }
            out.push(']');
        }
        Value::Object(members) => {
            let mut sorted: Vec<&Member> = members.iter().collect();
            match slip {
                Some(Slip::Utf8Order) => sorted.sort_by_key(|member| &member.name),
                Some(Slip::SpeltOrder) => sorted.sort_by_key(|member| &member.spelt),
                _ => sorted.sort_by_key(|member| member.name.encode_utf16().collect::<Vec<_>>()),
            }
            out.push('{');
            for (at, member) in sorted.into_iter().enumerate() {
                out.push_str(if at == 0 { "" } else { "," });
                write_text(&member.name, slip, out);
                out.push(':');
                write(&member.value, slip, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, slip: Option<Slip>, out: &mut String) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", u32::from(character))),
            '\u{7f}' if slip == Some(Slip::EscapedDelete) => out.push_str("\\u007f"),
            _ => out.push(character),
        }
    }
    out.push('"');
}
