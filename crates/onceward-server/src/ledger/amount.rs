//! Amounts of money as exact decimals: `10`, `10.00` and `1e1` are the same, and nothing is rounded.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// An exact decimal. Has one form only, so that equal amounts are equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(crate) struct Amount {
    /// Without trailing zeros.
    digits: i128,
    /// How many of them stand behind the point; negative for zeros before it.
    scale: i32,
}

/// More would be a typing error or an attack, and no currency needs it.
const SCALE_MAX: i32 = 60;

/// Why a text is not an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not an amount such as 10.50: digits with one decimal point, no currency and no separators"
)]
pub(crate) struct BadAmount;

impl Amount {
    fn new(mut digits: i128, mut scale: i32) -> Result<Amount, BadAmount> {
        if digits == 0 {
            return Ok(Amount { digits: 0, scale: 0 });
        }
        while digits % 10 == 0 {
            digits /= 10;
            scale -= 1;
        }
        match (-SCALE_MAX..=SCALE_MAX).contains(&scale) {
            true => Ok(Amount { digits, scale }),
            false => Err(BadAmount),
        }
    }

    /// The amount of which this is the number of smallest units, where a unit has so many digits
    /// behind its point: of 1050 with 2 that is 10.50.
    pub(crate) fn of_minor_units(self, places: u8) -> Result<Amount, BadAmount> {
        Amount::new(self.digits, self.scale + i32::from(places))
    }
}

impl FromStr for Amount {
    type Err = BadAmount;

    fn from_str(text: &str) -> Result<Amount, BadAmount> {
        let text = text.trim();
        let (number, exponent) = match text.split_once(['e', 'E']) {
            Some((number, exponent)) => (number, exponent.parse::<i16>().map_err(|_| BadAmount)?),
            None => (text, 0),
        };
        let negative = number.starts_with('-');
        let number = number.strip_prefix(['-', '+']).unwrap_or(number);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let mut digits = whole.bytes().chain(fraction.bytes());
        let is_number = digits.clone().all(|byte| byte.is_ascii_digit())
            && !whole.is_empty()
            && (number.contains('.') != fraction.is_empty());
        if !is_number {
            return Err(BadAmount);
        }
        let value = digits.try_fold(0_i128, |value, digit| {
            value.checked_mul(10)?.checked_add(i128::from(digit - b'0'))
        });
        let value = value.ok_or(BadAmount)?;
        let places = i32::try_from(fraction.len()).map_err(|_| BadAmount)?;
        Amount::new(if negative { -value } else { value }, places - i32::from(exponent))
    }
}

impl TryFrom<String> for Amount {
    type Error = BadAmount;

    fn try_from(text: String) -> Result<Amount, BadAmount> {
        text.parse()
    }
}

impl From<Amount> for String {
    fn from(amount: Amount) -> String {
        amount.to_string()
    }
}

/// With a point, and never with an exponent.
impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Amount { digits, scale } = *self;
        let sign = if digits < 0 { "-" } else { "" };
        let digits = digits.unsigned_abs().to_string();
        let Some(places) = usize::try_from(scale).ok().filter(|places| *places > 0) else {
            let zeros = scale.unsigned_abs() as usize;
            return write!(f, "{sign}{digits}{}", "0".repeat(zeros));
        };
        let digits = format!("{digits:0>width$}", width = places + 1);
        let (whole, fraction) = digits.split_at(digits.len() - places);
        write!(f, "{sign}{whole}.{fraction}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn amount(text: &str) -> Amount {
        text.parse().expect(text)
    }

    #[test]
    fn spellings_of_one_amount_are_equal_and_neighbours_are_not() {
        for same in ["10.5", "10.50", "+10.5", " 10.500 ", "0010.5", "1.05e1", "105E-1"] {
            assert_eq!(amount(same), amount("10.5"), "{same}");
        }
        for other in ["10.51", "-10.5", "105", "1.05", "10.500000000000000000000000001"] {
            assert_ne!(amount(other), amount("10.5"), "{other}");
        }
        assert_eq!(amount("-0.00"), amount("0"));
        // Where binary fractions meet.
        assert_ne!(amount("9007199254740993"), amount("9007199254740992"));
        assert_ne!(amount("0.1000000000000000055"), amount("0.1"));
    }

    #[test]
    fn what_is_no_amount_is_refused_and_not_guessed() {
        for bad in [
            "",
            "-",
            ".",
            "1.",
            ".5",
            "1,000.00",
            "1 000",
            "$10",
            "10 EUR",
            "(5.00)",
            "1.2.3",
            "0x10",
            "1e",
            "e1",
            "1e99",
            "--1",
            "NaN",
            "\u{661}",
            &"9".repeat(40),
        ] {
            assert_eq!(bad.parse::<Amount>(), Err(BadAmount), "{bad}");
        }
    }

    #[test]
    fn an_amount_is_written_as_people_do_and_read_alike() {
        let spelled =
            [("1e3", "1000"), ("-0.05", "-0.05"), ("10.50", "10.5"), ("0", "0"), ("7", "7")];
        for (text, written) in spelled {
            assert_eq!(amount(text).to_string(), written);
            assert_eq!(amount(written), amount(text));
        }
    }

    #[test]
    fn minor_units_are_the_same_money() {
        assert_eq!(amount("1050").of_minor_units(2), Ok(amount("10.50")));
        assert_eq!(amount("1050").of_minor_units(0), Ok(amount("1050")));
        assert_eq!(amount("5").of_minor_units(3), Ok(amount("0.005")));
    }
}
