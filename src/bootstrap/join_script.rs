//! Common parts of scripts that join a cluster without EKS.
//!
//! Source: spec/aws.md §9.2 and §9.4.

use crate::bootstrap::mime::{MimePart, SHELL};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::{BootstrapError, mime};

/// Placeholder for the node name in a file, until the instance has determined it.
pub(super) const NODE_NAME: &str = "__NODE_NAME__";
/// Placeholder for the provider ID.
pub(super) const PROVIDER_ID: &str = "__PROVIDER_ID__";
/// End marker of a file in a script. No line of such a file equals the marker, because each line
/// has a key or a dash.
const END: &str = "OUTRIGGER";

/// Adds the parts of the user's own user data before the generated script. Without such parts,
/// returns only the script.
pub(super) fn with_user_parts(
    node: &NodeConfig<'_>,
    script: String,
) -> Result<String, BootstrapError> {
    let format = node.class.bootstrap.as_str();
    let mut parts = mime::user_parts(&node.class.user_data, format, |_| SHELL)?;
    if parts.is_empty() {
        return Ok(script);
    }
    parts.push(MimePart::new(SHELL, script));
    Ok(mime::write_archive(&parts))
}

/// Requests the identity of the instance from IMDSv2. The script does not set `-x`, because that
/// would print tokens to the console.
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

/// Writes a file that only root can read, then replaces the placeholders in it. The shell expands
/// nothing in the content.
pub(super) fn write_file(path: &str, text: &str) -> String {
    format!(
        "(umask 077; cat >{path} <<'{END}'\n{text}{END}\n)\n\
         sed -i \"s|{NODE_NAME}|$NODE_NAME|; s|{PROVIDER_ID}|$PROVIDER_ID|\" {path}\n"
    )
}

/// Host and port of a URL. `port` is the default port.
pub(super) fn host_port(url: &str, port: u16) -> (&str, String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or(rest);
    match authority.rsplit_once(':') {
        // An IPv6 address with colons is in brackets.
        Some((host, url_port)) if !url_port.contains(']') => (host, url_port.to_owned()),
        _ => (authority, port.to_string()),
    }
}
