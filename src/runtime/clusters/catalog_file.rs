//! Reads the catalog file of a cluster.

use std::path::Path;

use crate::catalog::{self, Catalog};
use crate::host::files;
use crate::model::id::ClusterName;
use crate::runtime::clusters::error::PrepareError;

/// Returns the catalog of a file.
pub(super) fn read_catalog(cluster: &ClusterName, path: &Path) -> Result<Catalog, PrepareError> {
    let name = path.display().to_string();
    let text = files::read_limited(path)
        .map_err(|error| PrepareError::CatalogFile(cluster.clone(), error))?;
    catalog::parse(&name, &text).map_err(|error| PrepareError::Catalog(cluster.clone(), error))
}
