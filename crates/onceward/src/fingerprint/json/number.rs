//! Numbers as exact decimals.
//!
//! A number is written as its sign, its digits without zeros at either end,
//! and a power of ten: `-12.50` is `-125e-1`, `1`, `1.0` and `10e-1` are `1`,
//! and every zero is `0`. Nothing is rounded, so 2^53 and 2^53 + 1 stay apart.
//!
//! The power must fit an `i64` both as it was sent, in a zero too, and as it is
//! written here.

use super::NotCanonical;

/// Reads the number that `input` starts with and writes its canonical form.
/// Answers the rest of the input.
pub(super) fn write<'b>(input: &'b [u8], out: &mut Vec<u8>) -> Result<&'b [u8], NotCanonical> {
    let unsigned = input.strip_prefix(b"-").unwrap_or(input);
    let (whole, mut rest) = digits(unsigned)?;
    if let [b'0', _, ..] = whole {
        return Err(NotCanonical::Syntax);
    }
    let mut fraction: &[u8] = &[];
    if let [b'.', tail @ ..] = rest {
        (fraction, rest) = digits(tail)?;
    }
    let mut exponent = 0;
    if let [b'e' | b'E', tail @ ..] = rest {
        (exponent, rest) = read_exponent(tail)?;
    }

    // Zeros at the end of the digits, and at their start.
    let fraction = without_trailing_zeros(fraction);
    let significant = match fraction {
        [] => without_trailing_zeros(whole),
        _ => whole,
    };
    let shift = length(whole.len() - significant.len())? - length(fraction.len())?;
    let (significant, fraction) = match significant {
        [] | [b'0'] => (&[][..], without_leading_zeros(fraction)),
        _ => (significant, fraction),
    };
    if significant.is_empty() && fraction.is_empty() {
        out.push(b'0');
        return Ok(rest);
    }
    let exponent = i64::checked_add(exponent, shift).ok_or(NotCanonical::ExponentTooLarge)?;
    if unsigned.len() < input.len() {
        out.push(b'-');
    }
    out.extend_from_slice(significant);
    out.extend_from_slice(fraction);
    if exponent != 0 {
        out.push(b'e');
        write_integer(exponent, out);
    }
    Ok(rest)
}

/// Splits off the digits that `input` starts with, of which there must be one.
fn digits(input: &[u8]) -> Result<(&[u8], &[u8]), NotCanonical> {
    let end = input.iter().position(|byte| !byte.is_ascii_digit());
    match input.split_at_checked(end.unwrap_or(input.len())) {
        None | Some(([], _)) => Err(NotCanonical::Syntax),
        Some(split) => Ok(split),
    }
}

fn read_exponent(input: &[u8]) -> Result<(i64, &[u8]), NotCanonical> {
    let (negative, unsigned) = match input {
        [b'-', tail @ ..] => (true, tail),
        [b'+', tail @ ..] => (false, tail),
        _ => (false, input),
    };
    let (digits, rest) = digits(unsigned)?;
    // Counted downwards, as the negative numbers reach one further: what is
    // written below can then always be read back.
    let negated = digits.iter().try_fold(0_i64, |so_far, digit| {
        so_far.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))
    });
    let exponent = match negative {
        true => negated,
        false => negated.and_then(i64::checked_neg),
    };
    Ok((exponent.ok_or(NotCanonical::ExponentTooLarge)?, rest))
}

fn without_trailing_zeros(mut digits: &[u8]) -> &[u8] {
    while let [head @ .., b'0'] = digits {
        digits = head;
    }
    digits
}

fn without_leading_zeros(mut digits: &[u8]) -> &[u8] {
    while let [b'0', tail @ ..] = digits {
        digits = tail;
    }
    digits
}

fn length(of_slice: usize) -> Result<i64, NotCanonical> {
    i64::try_from(of_slice).map_err(|_| NotCanonical::ExponentTooLarge)
}

/// Writes an integer in decimal. By hand, because `write!` costs more than
/// all the rest of a number.
fn write_integer(value: i64, out: &mut Vec<u8>) {
    if value < 0 {
        out.push(b'-');
    }
    let start = out.len();
    let mut left = value.unsigned_abs();
    loop {
        out.push(b'0' + (left % 10) as u8);
        left /= 10;
        if left == 0 {
            break;
        }
    }
    out.get_mut(start..).unwrap_or_default().reverse();
}
