//! Whole listings of a kind, page by page, each page limited in time.
//! It must not know what is listed.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

/// Objects a page, as client-go asks for them.
pub(crate) const PAGE: u32 = 500;
/// Time for one page: the API server itself gives up after a minute.
pub(crate) const PAGE_TIME: Duration = Duration::from_secs(60);
/// A listing of more pages than this, half a million objects, is no listing to wait for.
const PAGES: usize = 1000;

/// Why there is no listing.
#[derive(Debug, Error)]
pub(crate) enum ListError {
    #[error("list a page")]
    Api(#[source] kube::Error),
    #[error("list a page: no answer within {} s", PAGE_TIME.as_secs())]
    Late,
    #[error("list: more than {PAGES} pages of {PAGE}")]
    Endless,
}

/// Everything there is, or everything on one node, as of now: past the API server's cache.
pub(crate) async fn list<K>(api: &Api<K>, fields: Option<&str>) -> Result<Vec<K>, ListError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    if let Some(fields) = fields {
        params = params.fields(fields);
    }
    let mut all = Vec::new();
    for _ in 0..PAGES {
        let page = timeout(PAGE_TIME, api.list(&params))
            .await
            .map_err(|_| ListError::Late)?;
        let page = page.map_err(ListError::Api)?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(all),
        }
    }
    Err(ListError::Endless)
}
