//! Full listings of a kind, page by page, with a timeout per page.

use std::fmt::Debug;
use std::time::Duration;

use kube::Api;
use kube::api::ListParams;
use serde::de::DeserializeOwned;
use thiserror::Error;
use tokio::time::timeout;

/// Objects per page, as in client-go.
pub(crate) const PAGE: u32 = 500;
/// Timeout of one page. The API server aborts a request after a minute.
pub(crate) const PAGE_TIME: Duration = Duration::from_secs(60);
/// Maximum number of pages, enough for half a million objects.
const PAGES: usize = 1000;

/// Why a listing failed.
#[derive(Debug, Error)]
pub(crate) enum ListError {
    #[error("cannot list a page")]
    Api(#[source] kube::Error),
    #[error("cannot list a page: no response within {} s", PAGE_TIME.as_secs())]
    Late,
    #[error("cannot list: more than {PAGES} pages of {PAGE}")]
    Endless,
}

/// Lists all objects, or all objects of one node, bypassing the cache of the API server.
pub(crate) async fn list_all<K>(api: &Api<K>, fields: Option<&str>) -> Result<Vec<K>, ListError>
where
    K: Clone + DeserializeOwned + Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    if let Some(fields) = fields {
        params = params.fields(fields);
    }
    let mut all = Vec::new();
    for _ in 0..PAGES {
        let page = timeout(PAGE_TIME, api.list(&params)).await.map_err(|_| ListError::Late)?;
        let page = page.map_err(ListError::Api)?;
        all.extend(page.items);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(all),
        }
    }
    Err(ListError::Endless)
}
