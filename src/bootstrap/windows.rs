//! User data of Windows: a PowerShell block that calls `Start-EKSBootstrap.ps1`.
//!
//! Source: spec/aws.md §3.5.

use crate::bootstrap::BootstrapError;
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::shell_quote::quote_powershell;

const FORMAT: &str = "Windows";
const OPEN: &str = "<powershell>";
const CLOSE: &str = "</powershell>";

fn user_data_error(reason: &str) -> BootstrapError {
    BootstrapError::UserData { format: FORMAT, reason: reason.to_owned() }
}

/// Renders one block: the user's script, then the call of `Start-EKSBootstrap.ps1`.
pub(super) fn render(node: &NodeConfig<'_>) -> Result<String, BootstrapError> {
    node.kubelet.without_extra(FORMAT)?;
    let user_data = node.class.user_data.trim();
    let inner = user_data.strip_prefix(OPEN).map(|block| block.strip_suffix(CLOSE));
    let commands = match inner {
        Some(inner) => {
            inner.ok_or_else(|| user_data_error("something follows its <powershell> block"))?
        }
        None => user_data,
    };
    let (endpoint, ca) = node.api_server()?;
    let mut call = format!(
        "& $EKSBootstrapScriptFile -EKSClusterName {} -APIServerEndpoint {} -Base64ClusterCA {} \
         -KubeletExtraArgs {}",
        quote_powershell(&node.home.name),
        quote_powershell(endpoint),
        quote_powershell(ca),
        quote_powershell(&node.kubelet_extra_args())
    );
    if let Some(dns) = node.kubelet.cluster_dns.first() {
        call.push_str(&format!(" -DNSClusterIP '{dns}'"));
    }
    let script = format!(
        "{}\n[string]$EKSBootstrapScriptFile = \
         \"$env:ProgramFiles\\Amazon\\EKS\\Start-EKSBootstrap.ps1\"\n{call}\n",
        commands.trim()
    );
    // EC2Launch searches for tags and ignores the syntax of the script. A tag anywhere in the
    // script would end the block.
    let lower = script.to_ascii_lowercase();
    let tags = ["powershell>", "script>", "persist>", "powershellarguments>"];
    if tags.iter().any(|tag| lower.contains(tag)) {
        return Err(user_data_error(
            "only one <powershell> block is understood, around all of it or none of it",
        ));
    }
    Ok(format!("{OPEN}\n{}\n{CLOSE}\n", script.trim()))
}
