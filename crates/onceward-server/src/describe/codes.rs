//! The pages of the error codes, as they stand in the documentation.

use anyhow::{Result, bail};
use onceward::rejection::Code;
use serde_json::{Value, json};

use crate::config::hint;

pub(super) struct Page {
    name: &'static str,
    pub(super) text: &'static str,
}

/// `errors` is a link to `docs/errors`, so that the pages are part of the package.
macro_rules! pages {
    ($($name:literal,)+) => {
        const PAGES: &[Page] = &[$(
            Page { name: $name, text: include_str!(concat!("../../errors/", $name, ".md")) },
        )+];
    };
}

pages! {
    "idempotency_key_missing",
    "idempotency_key_invalid",
    "idempotency_request_too_old",
    "idempotency_request_ambiguous",
    "idempotency_scope_unstable",
    "idempotency_scope_missing",
    "idempotency_key_in_progress",
    "idempotency_outcome_unknown",
    "idempotency_key_expired",
    "idempotency_reply_not_stored",
    "idempotency_body_too_large",
    "idempotency_key_reused_with_different_payload",
    "idempotency_rate_limited",
    "idempotency_upstream_unreachable",
    "idempotency_store_unavailable",
    "idempotency_store_regressed",
    "idempotency_not_executed",
}

/// The page of a code, which may be given without the word that all of them begin with.
pub(super) fn page(asked: &str) -> Result<&'static Page> {
    let code = asked.trim().trim_start_matches("urn:onceward:problem:").to_ascii_lowercase();
    let short = |page: &Page| page.name.trim_start_matches("idempotency_") == code;
    if let Some(page) = PAGES.iter().find(|page| page.name == code || short(page)) {
        return Ok(page);
    }
    let known: Vec<&str> = PAGES.iter().map(|page| page.name).collect();
    let long = format!("idempotency_{}", code.trim_start_matches("idempotency_"));
    bail!("`{asked}` is not an error code{}", hint(&long, &known))
}

impl Page {
    pub(super) fn json(&self) -> Value {
        let code = Code::ALL.into_iter().find(|code| code.name() == self.name);
        json!({
            "code": self.name,
            "status": code.map(|code| code.status().as_u16()),
            "title": code.map(Code::title),
            "retry": code.map(|code| code.retry().name()),
            "page": self.text,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_and_every_page_can_be_explained() {
        for code in Code::ALL {
            let name = code.name();
            let page = page(name).expect(name);
            assert!(page.text.starts_with(&format!("# {name}")));
        }
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/errors");
        for file in std::fs::read_dir(folder).expect("the pages") {
            let name = file.expect("a page").file_name().into_string().expect("text");
            let name = name.trim_end_matches(".md");
            assert!(name == "README" || page(name).is_ok(), "{name} is not embedded");
        }
    }
}
