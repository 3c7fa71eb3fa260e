//! What scripts that join a cluster without EKS have in common.
//! It must not know which distribution joins.
//!
//! Source: spec/aws.md §9.2 and §9.4.

use crate::bootstrap::mime::{MimePart, SHELL};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, mime};

/// What stands in a file for the name of the node until the instance knows it.
pub(super) const NODE_NAME: &str = "__NODE_NAME__";
/// The same for its provider id.
pub(super) const PROVIDER_ID: &str = "__PROVIDER_ID__";
/// Ends a file in a script. No line of such a file can be this: each has a key or a dash.
const END: &str = "OUTRIGGER";

/// The user's parts, then ours; ours alone where there are none.
pub(super) fn with_user_parts(
    node: &NodeConfig<'_>,
    script: String,
) -> Result<String, BootstrapError> {
    let format = node.class.bootstrap.as_str();
    let mut parts = mime::parts(&node.class.user_data, format, |_| SHELL)?;
    if parts.is_empty() {
        return Ok(script);
    }
    parts.push(MimePart::new(SHELL, script));
    Ok(mime::write(&parts))
}

/// Asks the instance who it is, through IMDSv2. No `-x`: it would print tokens to the console.
pub(super) fn preamble(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    let metadata = &node.class.metadata;
    if !metadata.endpoint {
        let bootstrap = node.class.bootstrap.as_str();
        return Err(BootstrapError::MetadataDisabled(bootstrap));
    }
    let address = match metadata.ipv6 && node.home.ipv6 {
        true => "[fd00:ec2::254]",
        false => "169.254.169.254",
    };
    Ok(format!(
        "#!/bin/bash\n\
         set -euo pipefail\n\
         IMDS='http://{address}/latest'\n\
         TOKEN=$(curl -sfg --retry 10 --retry-connrefused -X PUT \"$IMDS/api/token\" \\\n  \
           -H 'X-aws-ec2-metadata-token-ttl-seconds: 600')\n\
         md() {{ curl -sfg --retry 10 -H \"X-aws-ec2-metadata-token: $TOKEN\" \
         \"$IMDS/meta-data/$1\"; }}\n\
         ZONE=$(md placement/availability-zone)\n\
         ID=$(md instance-id)\n\
         PROVIDER_ID=\"aws:///$ZONE/$ID\"\n\
         NODE_NAME=$(md local-hostname | cut -d' ' -f1)\n"
    ))
}

/// Writes a file that only root may read, then who the instance is into it. Nothing in the text is
/// expanded.
pub(super) fn file(path: &str, text: &str) -> String {
    format!(
        "(umask 077; cat >{path} <<'{END}'\n{text}{END}\n)\n\
         sed -i \"s|{NODE_NAME}|$NODE_NAME|; s|{PROVIDER_ID}|$PROVIDER_ID|\" {path}\n"
    )
}

/// Host and port of a URL; a missing port is this one.
pub(super) fn host_port(url: &str, port: u16) -> (&str, String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        // The colons of an IPv6 address stand in brackets.
        Some((host, own)) if !own.contains(']') => (host, own.to_owned()),
        _ => (authority, port.to_string()),
    }
}
