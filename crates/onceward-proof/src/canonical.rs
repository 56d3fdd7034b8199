//! Two implementations of the canonical form of JSON, compared on random documents.
//!
//! The library's is written for speed: one pass, no tree. [`second`] is written for the eye, from the
//! description in `onceward::fingerprint` and not from the code. They must say the same of every
//! document: that it has no canonical form, or the same bytes.

use std::fmt;

use onceward::testing::fuzz::canonical_json;

pub mod command;
pub mod document; // what is compared
pub mod second; // the other implementation
mod shrink; // from a long document to a short one

use second::Slip;

/// A document on which the implementations differ, as short as it could be made.
#[derive(Debug)]
pub struct Disagreement {
    /// The seed of the document.
    pub seed: u64,
    /// The document.
    pub document: Vec<u8>,
    /// What the library says.
    pub library: Option<Vec<u8>>,
    /// What the second implementation says.
    pub second: Option<Vec<u8>>,
}

impl Disagreement {
    /// What the two say of a document, unless they say the same.
    pub fn on(document: &[u8], slip: Option<Slip>) -> Option<Self> {
        let library = canonical_json(document);
        let second = second::canonical(document, slip);
        let differ = library != second;
        differ.then(|| Disagreement { seed: 0, document: document.to_vec(), library, second })
    }

    /// The shortest document found on which they differ still.
    #[must_use]
    pub fn shrunk(mut self, slip: Option<Slip>) -> Self {
        let differs = |document: &[u8]| Self::on(document, slip).is_some();
        let document = shrink::shrunk(std::mem::take(&mut self.document), differs);
        match Self::on(&document, slip) {
            Some(found) => Disagreement { seed: self.seed, ..found },
            None => Disagreement { document, ..self },
        }
    }
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |form: &Option<Vec<u8>>| match form {
            Some(form) => form.escape_ascii().to_string(),
            None => "no canonical form".to_owned(),
        };
        writeln!(f, "the implementations differ; --seed {} --documents 1 shows it", self.seed)?;
        writeln!(f, "  document: {}", self.document.escape_ascii())?;
        writeln!(f, "  library:  {}", show(&self.library))?;
        write!(f, "  second:   {}", show(&self.second))
    }
}

impl std::error::Error for Disagreement {}

/// What was compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compared {
    /// Documents that have a canonical form.
    pub canonical: u64,
    /// Documents that have none.
    pub raw: u64,
}

/// Compares on `documents` random documents. Document number n has the seed `seed` + n.
///
/// # Errors
/// With the first document on which the implementations differ, made short.
pub fn compare(
    seed: u64,
    documents: u64,
    slip: Option<Slip>,
) -> Result<Compared, Box<Disagreement>> {
    let mut compared = Compared::default();
    for number in 0..documents {
        let seed = seed.wrapping_add(number);
        let document = document::document(seed);
        let library = canonical_json(&document);
        match &library {
            Some(_) => compared.canonical += 1,
            None => compared.raw += 1,
        }
        let second = second::canonical(&document, slip);
        if library != second {
            let found = Disagreement { seed, document, library, second };
            return Err(Box::new(found.shrunk(slip)));
        }
    }
    Ok(compared)
}

#[cfg(test)]
mod tests;
