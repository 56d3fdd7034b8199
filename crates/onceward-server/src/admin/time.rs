//! Times as people and programs read them: RFC 3339 in UTC.

use onceward::clock::Timestamp;

const DAY: i64 = 86_400;

/// A time as `2026-11-16T06:30:00.000001Z`.
pub(crate) fn rfc3339(at: Timestamp) -> String {
    let micros = at.as_micros();
    let (seconds, fraction) = (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000));
    let (day, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
    let (year, month, date) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let whole = format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{second:02}");
    if fraction == 0 { format!("{whole}Z") } else { format!("{whole}.{fraction:06}Z") }
}

/// Reads what [`rfc3339`] writes, with any number of digits of a second, and with other zones.
pub(crate) fn parse(text: &str) -> Option<Timestamp> {
    let (date, rest) = (text.get(..10)?, text.get(11..)?);
    if !matches!(text.as_bytes().get(10), Some(b'T' | b't' | b' ')) || !text.is_ascii() {
        return None;
    }
    let (year, month, day) = (digits(date, 0, 4)?, digits(date, 5, 2)?, digits(date, 8, 2)?);
    let dashes = date.as_bytes().get(4) == Some(&b'-') && date.as_bytes().get(7) == Some(&b'-');
    let clock = rest.get(..8)?;
    let (hour, minute, second) = (digits(clock, 0, 2)?, digits(clock, 3, 2)?, digits(clock, 6, 2)?);
    let colons = clock.as_bytes().get(2) == Some(&b':') && clock.as_bytes().get(5) == Some(&b':');
    let in_range = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !(dashes && colons && in_range && hour < 24 && minute < 60 && second <= 60) {
        return None;
    }
    let (micros, zone) = fraction(rest.get(8..)?)?;
    let seconds = days_from_civil(year, month, day) * DAY + hour * 3600 + minute * 60 + second;
    Some(Timestamp::from_micros((seconds - offset(zone)?) * 1_000_000 + micros))
}

fn digits(text: &str, from: usize, count: usize) -> Option<i64> {
    let part = text.get(from..from + count)?;
    if !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    part.parse().ok()
}

fn fraction(text: &str) -> Option<(i64, &str)> {
    let Some(rest) = text.strip_prefix('.') else { return Some((0, text)) };
    let end = rest.bytes().position(|byte| !byte.is_ascii_digit()).unwrap_or(rest.len());
    let (part, zone) = rest.split_at(end);
    if part.is_empty() {
        return None;
    }
    let six: String = part.chars().chain("000000".chars()).take(6).collect();
    Some((six.parse().ok()?, zone))
}

/// Seconds that this zone is ahead.
fn offset(zone: &str) -> Option<i64> {
    if zone == "Z" || zone == "z" {
        return Some(0);
    }
    let sign = match zone.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = (digits(zone, 1, 2)?, digits(zone, 4, 2)?);
    let well_formed = zone.len() == 6 && zone.as_bytes().get(3) == Some(&b':');
    (well_formed && hours < 24 && minutes < 60).then_some(sign * (hours * 3600 + minutes * 60))
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The date of a day since 1970, by the well-known method of eras of 400 years from March on.
fn civil(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let date = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, date)
}

fn days_from_civil(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_and_read_alike() {
        for (micros, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (1, "1970-01-01T00:00:00.000001Z"),
            (951_782_400_000_000, "2000-02-29T00:00:00Z"),
            (1_763_274_645_500_000, "2025-11-16T06:30:45.500000Z"),
            (-1_000_000, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(rfc3339(Timestamp::from_micros(micros)), text);
            assert_eq!(parse(text), Some(Timestamp::from_micros(micros)), "{text}");
        }
        for day in (-200_000..200_000).step_by(97) {
            let (year, month, date) = civil(day);
            assert_eq!(days_from_civil(year, month, date), day);
        }
    }

    #[test]
    fn other_zones_and_fractions_are_understood_and_nonsense_is_not() {
        let noon = parse("2026-01-01T12:00:00Z");
        assert!(noon.is_some());
        assert_eq!(parse("2026-01-01T14:00:00.000+02:00"), noon);
        assert_eq!(parse("2026-01-01T08:30:00-03:30"), noon);
        for bad in [
            "",
            "2026",
            "2026-01-01",
            "2026-13-01T00:00:00Z",
            "2026-02-29T00:00:00Z",
            "2026-01-01T24:00:00Z",
            "2026-01-01T00:00:00",
            "2026-01-01T00:00:00.Z",
            "2026-01-01T00:00:00+2:00",
            "+026-01-01T00:00:00Z",
            "2026-01-01T00:00:00Zx",
            "2026-01-0\u{e4}T00:00:00Z",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
