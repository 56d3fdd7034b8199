//! `[admin]`: who may use the admin API, and under which names it is reached.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use schemars::JsonSchema;
use serde::Deserialize;

use super::secret::Text;
use crate::admin::Access;

/// The variable that holds the token of the admin API, for the server and for commands.
pub(crate) const TOKEN: &str = "ONCEWARD_ADMIN_TOKEN";

/// A token that can be guessed is none.
const TOKEN_LEN_MIN: usize = 16;

/// The section as it is written.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Admin {
    /// Tokens of the admin API by the name of whoever has them.
    #[serde(default)]
    tokens: BTreeMap<String, Text>,
    /// Names under which the admin listener is reached, beside its addresses.
    #[serde(default)]
    hosts: Vec<Text>,
}

/// Who may use the admin API.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct AdminSettings {
    tokens: Vec<(Box<str>, Box<str>)>,
    from_environment: Option<Box<str>>,
    hosts: Vec<Box<str>>,
}

impl std::fmt::Debug for AdminSettings {
    /// Without the tokens.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminSettings").field("hosts", &self.hosts).finish_non_exhaustive()
    }
}

impl AdminSettings {
    /// Whether a token is set, so that none has to be made.
    pub(crate) fn has_token(&self) -> bool {
        !self.tokens.is_empty() || self.from_environment.is_some()
    }

    /// Who has a token, and how the listener is called.
    pub(crate) fn names(&self) -> (Vec<&str>, Vec<&str>) {
        let owners = self.tokens.iter().map(|(owner, _)| &**owner).collect();
        (owners, self.hosts.iter().map(|host| &**host).collect())
    }

    /// What lets callers in; with the token that was made, if none is set.
    pub(crate) fn access(&self) -> (Access, Option<String>) {
        Access::new(&self.tokens, self.from_environment.as_deref(), &self.hosts)
    }
}

pub(super) fn resolve(file: &Admin) -> Result<AdminSettings> {
    let from_environment = std::env::var(TOKEN).ok().filter(|token| !token.is_empty());
    settings(file, from_environment)
}

fn settings(file: &Admin, from_environment: Option<String>) -> Result<AdminSettings> {
    let named = file.tokens.iter().map(|(name, token)| (&**name, token.as_str()));
    for (name, token) in named.chain(from_environment.as_deref().map(|token| (TOKEN, token))) {
        ensure!(
            token.len() >= TOKEN_LEN_MIN && token.bytes().all(|byte| byte.is_ascii_graphic()),
            "the admin token {name} must have at least {TOKEN_LEN_MIN} printable characters, \
             without blanks"
        );
        ensure!(
            !name.is_empty() && name.len() <= 64 && !name.chars().any(char::is_control),
            "a name in admin.tokens must have 1 to 64 characters"
        );
    }
    Ok(AdminSettings {
        tokens: file
            .tokens
            .iter()
            .map(|(name, it)| (name.as_str().into(), it.as_str().into()))
            .collect(),
        from_environment: from_environment.map(Into::into),
        hosts: file.hosts.iter().map(|host| host.as_str().into()).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(toml: &str, from_environment: Option<&str>) -> Result<AdminSettings> {
        settings(&toml::from_str(toml).expect(toml), from_environment.map(str::to_owned))
    }

    #[test]
    fn tokens_come_from_the_file_and_the_environment() {
        assert!(!of("", None).expect("valid").has_token());
        assert!(of("", Some("0123456789abcdef")).expect("valid").has_token());
        let named = of("[tokens]\nalice = \"0123456789abcdef\"", None).expect("valid");
        assert!(named.has_token());
        assert!(!format!("{named:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn a_token_that_can_be_guessed_or_cannot_be_sent_is_refused() {
        for token in ["short", "0123456789abcde", "0123456789 abcdef", "0123456789abcdef\\n"] {
            assert!(of(&format!("[tokens]\na = \"{token}\""), None).is_err(), "{token}");
        }
        assert!(of("", Some("short")).is_err());
    }
}
