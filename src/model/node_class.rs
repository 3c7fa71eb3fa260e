//! A node class: how EC2 makes the nodes of a pool.
//! It must not know which pools use it.

use crate::model::id::NodeClassName;
use crate::model::labels::Labels;

/// How EC2 makes a node. The image, network and disk settings join with the EC2 provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeClass {
    /// Name.
    pub name: NodeClassName,
    /// IAM role of the nodes; empty where none is given.
    pub role: String,
    /// User data, passed on as it is; empty where none is given.
    pub user_data: String,
    /// Tags for everything a launch makes.
    pub tags: Labels,
}
