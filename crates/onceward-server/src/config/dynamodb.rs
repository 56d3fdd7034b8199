//! Tables of DynamoDB, as a store's URL names them.

use std::fmt;

use anyhow::{Result, bail, ensure};

use super::suggest;

/// A table of DynamoDB. What is not given here comes from the usual AWS environment, credentials
/// always do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DynamoUrl {
    pub(crate) table: String,
    pub(crate) region: Option<String>,
    pub(crate) endpoint: Option<String>,
}

impl DynamoUrl {
    /// `TABLE?region=...&endpoint=...`, as it stands behind `dynamodb://`.
    pub(super) fn parse(rest: &str) -> Result<Self> {
        let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
        let known = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        ensure!(
            (3..=255).contains(&table.len()) && table.bytes().all(known),
            "the store dynamodb:// names no table: 3 to 255 letters, digits, `_`, `-` and `.`"
        );
        let mut url = DynamoUrl { table: table.to_owned(), region: None, endpoint: None };
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            let value = Some(value.into_owned());
            match &*name {
                "region" => url.region = value,
                "endpoint" => url.endpoint = value,
                other => bail!(
                    "the store dynamodb:// has no parameter `{other}`{}",
                    suggest::hint(other, &["region", "endpoint"])
                ),
            }
        }
        let plain = |it: &String| it.starts_with("http://") || it.starts_with("https://");
        ensure!(
            url.endpoint.as_ref().is_none_or(plain),
            "the endpoint of the store dynamodb:// is no URL such as http://127.0.0.1:8000"
        );
        Ok(url)
    }
}

impl fmt::Display for DynamoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dynamodb://{}", self.table)?;
        let mut before = '?';
        for (name, value) in [("region", &self.region), ("endpoint", &self.endpoint)] {
            if let Some(value) = value {
                write!(f, "{before}{name}={value}")?;
                before = '&';
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_read_and_shown_with_what_was_given() {
        for text in [
            "onceward",
            "my.table_1?region=eu-west-1",
            "table?endpoint=http://127.0.0.1:8000",
            "table?region=local&endpoint=http://127.0.0.1:8000",
        ] {
            let url = DynamoUrl::parse(text).expect("a table");
            assert_eq!(url.to_string(), format!("dynamodb://{text}"));
        }
    }

    #[test]
    fn what_names_no_table_is_refused() {
        for text in ["", "ab", "a/b", "t\u{e4}ble", "table?", "table?x=1", "table?endpoint=x"] {
            let refused = DynamoUrl::parse(text).is_err();
            assert_eq!(refused, text != "table?", "{text}");
        }
    }
}
