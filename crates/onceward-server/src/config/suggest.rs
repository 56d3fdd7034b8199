//! Did you mean ...? The nearest of the names that would have been right.

/// The nearest name, if one is near enough to be meant.
pub(crate) fn nearest<'a>(
    written: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let distances = known.into_iter().map(|name| (distance(written, name), name));
    let (distance, name) = distances.min_by_key(|(distance, _)| *distance)?;
    // A third of the letters may be wrong: `upstrem` yes, `foo` for `from` no.
    (distance * 3 <= written.len().max(name.len())).then_some(name)
}

/// `; did you mean ...?`, or the list of what would have been right.
pub(crate) fn hint(written: &str, known: &[&str]) -> String {
    match nearest(written, known.iter().copied()) {
        Some(name) => format!("; did you mean `{name}`?"),
        None => format!("; use one of {}", known.join(", ")),
    }
}

/// How many letters to insert, delete, replace or swap with their neighbour.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before_last = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let replaced = last[j] + usize::from(x != y);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: [&str; 4] = ["upstream", "listen", "admin", "max_execution"];

    #[test]
    fn a_near_miss_is_recognised() {
        for (written, meant) in [
            ("upstrem", "upstream"),
            ("lisetn", "listen"),
            ("max-execution", "max_execution"),
            ("admins", "admin"),
        ] {
            assert_eq!(nearest(written, KNOWN), Some(meant), "{written}");
        }
    }

    #[test]
    fn something_else_is_not_taken_for_a_near_miss() {
        for written in ["", "x", "workers", "route"] {
            assert_eq!(nearest(written, KNOWN), None, "{written}");
        }
        assert_eq!(hint("x", &["a", "b"]), "; use one of a, b");
    }
}
