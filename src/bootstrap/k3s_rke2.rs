//! User data for k3s and RKE2 agents, which use the same configuration format.
//!
//! Source: spec/aws.md §9.4; k3s and RKE2, agent configuration.

use serde_json::json;

use crate::bootstrap::join_script::{NODE_NAME, PROVIDER_ID};
use crate::bootstrap::node_config::NodeConfig;
use crate::bootstrap::shell_quote::quote_shell;
use crate::bootstrap::{BootstrapError, join_script};
use crate::model::node_class::bootstrap::AgentBootstrap;
use crate::text::yaml;

/// A Kubernetes distribution whose agents join through a supervisor port.
pub(super) struct Distribution {
    name: &'static str,
    /// Port of the supervisor.
    port: u16,
    /// systemd unit of the agent.
    unit: &'static str,
    /// Installer variables for the role and the version.
    kind: (&'static str, &'static str),
    /// Installer variable that configures an installation which is already in the image. `None` if
    /// the image is already configured.
    skip: Option<&'static str>,
    version: &'static str,
}

/// k3s.
pub(super) const K3S: Distribution = Distribution {
    name: "k3s",
    port: 6443,
    unit: "k3s-agent.service",
    kind: ("INSTALL_K3S_EXEC", "agent"),
    skip: Some("INSTALL_K3S_SKIP_DOWNLOAD"),
    version: "INSTALL_K3S_VERSION",
};

/// RKE2.
pub(super) const RKE2: Distribution = Distribution {
    name: "rke2",
    port: 9345,
    unit: "rke2-agent.service",
    kind: ("INSTALL_RKE2_TYPE", "agent"),
    skip: None,
    version: "INSTALL_RKE2_VERSION",
};

impl Distribution {
    /// Renders the parts of the user's own user data, then the script.
    pub(super) fn render(
        &self,
        agent: &AgentBootstrap,
        node: &NodeConfig<'_>,
    ) -> Result<String, BootstrapError> {
        node.kubelet.without_extra(self.name)?;
        // The settings are in a separate file, so that the config.yaml of the image is kept.
        let folder = format!("/etc/rancher/{}/config.yaml.d", self.name);
        let path = format!("{folder}/90-outrigger.yaml");
        let script = format!(
            "{}mkdir -p {folder}\n{}{}",
            join_script::preamble(node)?,
            join_script::write_file(&path, &self.agent_config(agent, node)?),
            self.start_script(agent.version.as_deref()),
        );
        join_script::with_user_parts(node, script)
    }

    fn agent_config(
        &self,
        agent: &AgentBootstrap,
        node: &NodeConfig<'_>,
    ) -> Result<String, BootstrapError> {
        let server = match &agent.server {
            Some(server) => server.clone(),
            None if node.home.endpoint.is_empty() => {
                return Err(BootstrapError::Unknown("endpoint"));
            }
            None => {
                let (host, _) = join_script::host_port(&node.home.endpoint, self.port);
                format!("https://{host}:{}", self.port)
            }
        };
        let labels = node.labels.iter().map(|(key, value)| format!("{key}={value}"));
        let mut arguments = vec![format!("provider-id={PROVIDER_ID}")];
        let dns = &node.class.kubelet.cluster_dns;
        if !dns.is_empty() {
            let dns: Vec<String> = dns.iter().map(ToString::to_string).collect();
            arguments.push(format!("cluster-dns={}", dns.join(",")));
        }
        let flags = node.kubelet.flags();
        arguments.extend(flags.iter().map(|(name, value)| format!("{name}={value}")));
        let document = json!({
            "server": server,
            "token": node.bootstrap_secret()?,
            "node-name": NODE_NAME,
            "node-label": labels.collect::<Vec<_>>(),
            "node-taint": node.taint_texts(),
            "kubelet-arg": arguments,
        });
        let items = document.as_object().cloned().unwrap_or_default();
        Ok(yaml::block_mapping(&items, 0))
    }

    /// Starts the installed agent, or installs it first.
    fn start_script(&self, version: Option<&str>) -> String {
        let (name, unit) = (self.name, self.unit);
        let (kind, agent) = self.kind;
        let baked = format!("/opt/{name}-install.sh");
        match version {
            Some(version) => format!(
                "INSTALLER={baked}\n\
                 if [ ! -f \"$INSTALLER\" ]; then\n  \
                   INSTALLER=/run/{name}-install.sh\n  \
                   curl -sfL --retry 10 -o \"$INSTALLER\" https://get.{name}.io\n\
                 fi\n\
                 {kind}={agent} {}={} sh \"$INSTALLER\"\n\
                 systemctl enable --now {unit}\n",
                self.version,
                quote_shell(version),
            ),
            None => {
                let setup = self.skip.map(|skip| {
                    format!(
                        "if [ -f {baked} ]; then\n  {kind}={agent} {skip}=true sh {baked}\nfi\n"
                    )
                });
                let setup = setup.unwrap_or_default();
                format!("{setup}systemctl enable --now {unit}\n")
            }
        }
    }
}
