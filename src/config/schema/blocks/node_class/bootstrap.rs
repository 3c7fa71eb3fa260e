//! Schema table of `bootstrap` blocks.
//! It must not depend on the code that reads it.

use crate::config::id_format::IdFormat;
use crate::config::schema::ArgumentType;

block_types! {
    /// How nodes join the cluster: `eks` (the default), `kubeadm`, `k3s`, `rke2`, `talos` or
    /// `custom`. The block never contains secrets. Outrigger fetches them at each launch.
    pub(super) static BOOTSTRAP = "bootstrap" "KIND", Once, arguments! {
        /// `kubeadm`, `k3s`, `rke2`, `custom`: creates a short-lived bootstrap token in the cluster
        /// and renews it. Default of the first three kinds if no other token is set.
        mint: ArgumentType::Flag;
        /// Same kinds: file with the token, such as a systemd credential.
        token_file: ArgumentType::Path;
        /// Same kinds: SSM parameter with the token.
        token_ssm_parameter: ArgumentType::Form(IdFormat::Parameter);
        /// `k3s`, `rke2`: URL of the supervisor. Defaults to the host of the API server with the
        /// standard port.
        server: ArgumentType::Form(IdFormat::Https);
        /// `k3s`, `rke2`: version to install. If missing, the image must contain the distribution.
        version: ArgumentType::Form(IdFormat::Version);
        /// `talos`: file with a worker machine configuration, as `talosctl gen config` creates it.
        /// Outrigger adds its own settings.
        machine_config_file: ArgumentType::Path;
        /// `talos`: SSM parameter with the worker machine configuration.
        machine_config_ssm_parameter: ArgumentType::Form(IdFormat::Parameter);
        /// `custom`: user data with `{{ name }}` placeholders. Required for this kind.
        template: ArgumentType::Form(IdFormat::Filled);
    };
}
