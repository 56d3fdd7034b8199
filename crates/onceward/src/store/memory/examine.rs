use super::MemoryStore;
use crate::store::site::{Finding, Schema, Site, SiteFuture, Step};

impl Site for MemoryStore {
    fn examine(&self) -> SiteFuture<'_, Vec<Finding>> {
        let advice = "use file:PATH or postgres:// for anything that must not run twice";
        let lost = Finding::volatile("durability", "nothing survives the process", advice);
        Box::pin(async move { Ok(vec![lost]) })
    }

    fn schema(&self) -> SiteFuture<'_, Schema> {
        Box::pin(async { Ok(Schema::new(0, None, &[])) })
    }

    fn migrate(&self) -> SiteFuture<'_, Vec<Step>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}
