/// Puts other bytes in the place of some, as many as they were.
#[derive(Default)]
pub(super) struct Replacer {
    /// The end of what came, as long as it may be the beginning of what is replaced.
    held: Vec<u8>,
}

impl Replacer {
    /// What may go on now that this piece has arrived, and how often something was replaced.
    pub(super) fn pass(&mut self, piece: &[u8], pairs: &[(Vec<u8>, Vec<u8>)]) -> (Vec<u8>, u64) {
        self.held.extend_from_slice(piece);
        let mut count = 0;
        for (from, to) in pairs {
            let mut at = 0;
            while let Some(found) = self.held[at..].windows(from.len()).position(|it| it == from) {
                at += found + from.len();
                self.held[at - from.len()..at].copy_from_slice(to);
                count += 1;
            }
        }
        let may_begin = |end: &[u8]| pairs.iter().any(|(from, _)| from.starts_with(end));
        let keep = (0..self.held.len()).find(|at| may_begin(&self.held[*at..]));
        let rest = self.held.split_off(keep.unwrap_or(self.held.len()));
        (std::mem::replace(&mut self.held, rest), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_may_come_in_pieces_and_nothing_else_changes() {
        let pairs = [(b"fence".to_vec(), b"FENCE".to_vec())];
        let mut replacer = Replacer::default();
        let mut passed = Vec::new();
        let mut count = 0;
        for piece in ["a fe", "nce, fen", "ders and a ", "fence", "; f", "."] {
            let (some, replaced) = replacer.pass(piece.as_bytes(), &pairs);
            passed.extend(some);
            count += replaced;
        }
        assert_eq!(String::from_utf8_lossy(&passed), "a FENCE, fenders and a FENCE; f.");
        assert_eq!(count, 2);
    }
}
