//! The message that is digested: parts behind tags and lengths.

/// First bytes of every digested message: keeps digests of other recipes, and
/// other uses of the same HMAC key, apart.
const LABEL: &[u8] = b"onceward-fp/1";

/// Room for the parts of an ordinary request with a small canonical body, so
/// that it takes one allocation.
const BYTES_FIRST: usize = 1024;

/// Tags of the parts. They are stored in digests, so they never change.
pub(crate) mod tag {
    pub(crate) const METHOD: u8 = 1;
    pub(crate) const PATH: u8 = 2;
    pub(crate) const QUERY: u8 = 3;
    pub(crate) const MEDIA_TYPE: u8 = 4;
    pub(crate) const CONTENT_TYPE_AS_SENT: u8 = 5;
    pub(crate) const CONTENT_CODING: u8 = 6;
    pub(crate) const HEADER_NAME: u8 = 7;
    pub(crate) const HEADER_COUNT: u8 = 8;
    pub(crate) const HEADER_VALUE: u8 = 9;
    pub(crate) const BODY_EMPTY: u8 = 16;
    pub(crate) const BODY_JSON: u8 = 17;
    pub(crate) const BODY_FORM: u8 = 18;
    pub(crate) const BODY_RAW: u8 = 19;
    pub(crate) const BODY_FALLBACK: u8 = 20;
}

/// The bytes to digest: the label, then parts behind tag and length.
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    pub(crate) fn new() -> Self {
        let mut bytes = Vec::with_capacity(BYTES_FIRST);
        bytes.extend_from_slice(LABEL);
        Self { bytes }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Writes what stands before the bytes of a part.
    pub(crate) fn announce(&mut self, tag: u8, length: usize) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&(length as u64).to_be_bytes());
    }

    pub(crate) fn part(&mut self, tag: u8, bytes: &[u8]) {
        self.announce(tag, bytes.len());
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn lowercase_part(&mut self, tag: u8, bytes: &[u8]) {
        self.announce(tag, bytes.len());
        self.bytes.extend(bytes.iter().map(u8::to_ascii_lowercase));
    }

    /// Writes a part whose length is known only afterwards. If `write` fails
    /// there is no part.
    pub(crate) fn part_written_by<E>(
        &mut self,
        tag: u8,
        write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
    ) -> Result<(), E> {
        let before = self.bytes.len();
        self.announce(tag, 0);
        let start = self.bytes.len();
        if let Err(error) = write(&mut self.bytes) {
            self.bytes.truncate(before);
            return Err(error);
        }
        let length = (self.bytes.len() - start) as u64;
        if let Some(announced) = self.bytes.get_mut(start - 8..start) {
            announced.copy_from_slice(&length.to_be_bytes());
        }
        Ok(())
    }
}
