//! Durations as people write them: `500ms`, `60s`, `5m`, `24h`, `30d`.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// Parses a whole number with its unit.
pub(crate) fn parse(text: &str) -> Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let millis = match unit.trim() {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => bail!("`{text}` is not a duration such as 500ms, 60s, 5m, 24h or 30d"),
    };
    let number: u64 =
        number.parse().with_context(|| format!("`{text}` does not begin with a whole number"))?;
    let millis = number.checked_mul(millis).filter(|millis| *millis <= MILLIS_MAX);
    let millis = millis.with_context(|| format!("`{text}` is longer than a hundred years"))?;
    Ok(Duration::from_millis(millis))
}

/// A hundred years: longer ones are typing errors, and would overflow what stores can hold.
const MILLIS_MAX: u64 = 100 * 366 * 86_400_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, seconds) in [("60s", 60), ("5m", 300), ("24h", 86_400), ("30d", 2_592_000)] {
            assert_eq!(parse(text).expect(text), Duration::from_secs(seconds));
        }
        assert_eq!(parse("500ms").expect("valid"), Duration::from_millis(500));
        assert_eq!(parse("0s").expect("valid"), Duration::ZERO);
    }

    #[test]
    fn anything_else_is_not_a_duration() {
        for text in ["", "60", "s", "-1s", "1.5h", "5 minutes", "10w", "99999999999999999999s"] {
            assert!(parse(text).is_err(), "{text}");
        }
        let error = parse("999999999h").expect_err("too long").to_string();
        assert!(error.contains("hundred years"), "{error}");
    }
}
