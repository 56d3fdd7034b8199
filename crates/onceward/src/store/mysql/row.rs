//! How the server holds the columns of records.

use std::str;

use sqlx::{
    MySql, Row as _,
    mysql::{MySqlArguments, MySqlRow},
    query::Query,
};

pub(super) use super::super::row::*;

impl Values for Query<'_, MySql, MySqlArguments> {
    fn integer(self, value: impl Into<Option<i64>>) -> Self {
        self.bind(value.into())
    }

    fn text(self, value: Option<String>) -> Self {
        self.bind(value)
    }

    fn blob(self, value: Option<Vec<u8>>) -> Self {
        self.bind(value)
    }
}

/// Text is bytes here, too: nothing between us and the server may turn one character into another.
impl Fields for MySqlRow {
    fn integer(&self, column: usize) -> Option<Option<i64>> {
        self.try_get(column).ok()
    }

    fn text(&self, column: usize) -> Option<Option<&str>> {
        match self.blob(column)? {
            None => Some(None),
            Some(bytes) => str::from_utf8(bytes).ok().map(Some),
        }
    }

    fn blob(&self, column: usize) -> Option<Option<&[u8]>> {
        self.try_get_unchecked(column).ok()
    }
}
