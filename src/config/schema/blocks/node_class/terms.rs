//! Schema tables of selectors of AWS resources: images, subnets, groups, reservations.
//! They must not depend on the code that reads them.

use crate::config::id_format::IdFormat;
use crate::config::schema::ArgumentType;

block_types! {
    /// Selects images. Blocks are alternatives. An image must match all arguments of a block.
    /// `alias` excludes other arguments.
    pub(super) static AMI = "ami", Many, arguments! {
        /// Image that AWS publishes, as family and version, such as `al2023@latest`. Families are
        /// `al2`, `al2023`, `bottlerocket`, `windows2019`, `windows2022` and `windows2025`. Windows
        /// supports only `latest`.
        alias: ArgumentType::Form(IdFormat::Alias);
        /// ID of the image.
        id: ArgumentType::Form(IdFormat::ImageId);
        /// SSM parameter that holds an image ID.
        ssm_parameter: ArgumentType::Form(IdFormat::Parameter);
        /// Name of the image; `*` matches any characters.
        name: ArgumentType::Form(IdFormat::Filled);
        /// Account ID, `self`, or an alias such as `amazon`. Defaults to `self` and `amazon` if
        /// `name` is set, and to any owner otherwise.
        owner: ArgumentType::Form(IdFormat::Filled);
        /// Tags that it must have, all of them; `"*"` matches any value.
        tags: ArgumentType::Searched;
    };

    /// Selects the subnets to launch into. Blocks are alternatives.
    pub(super) static SUBNET = "subnet", Many, arguments! {
        /// ID of the subnet.
        id: ArgumentType::Form(IdFormat::SubnetId);
        /// Tags that it must have, all of them; `"*"` matches any value.
        tags: ArgumentType::Searched;
    };

    /// Selects the security groups of the nodes: every group that matches at least one block.
    pub(super) static SECURITY_GROUP = "security_group", Many, arguments! {
        /// ID of the group.
        id: ArgumentType::Form(IdFormat::SecurityGroupId);
        /// Name of the group, not its `Name` tag.
        name: ArgumentType::Form(IdFormat::Filled);
        /// Tags that it must have, all of them; `"*"` matches any value.
        tags: ArgumentType::Searched;
    };

    /// Selects the capacity reservations to use: every reservation that matches at least one block.
    /// Without a block, Outrigger targets no reservation. Reservations for a different platform,
    /// such as Windows, and those with dedicated tenancy are not used.
    pub(super) static CAPACITY_RESERVATION = "capacity_reservation", Many, arguments! {
        /// ID of the reservation.
        id: ArgumentType::Form(IdFormat::ReservationId);
        /// Account ID of the owner. Requires `tags` or `instance_match_criteria`.
        owner: ArgumentType::Form(IdFormat::Account);
        /// Selects reservations that accept any matching launch (`open`), or only launches that
        /// target them (`targeted`).
        instance_match_criteria: ArgumentType::OneOf(&["open", "targeted"]);
        /// Tags that it must have, all of them; `"*"` matches any value.
        tags: ArgumentType::Searched;
    };

    /// Placement group of all nodes, by ID or name.
    pub(super) static PLACEMENT_GROUP = "placement_group", Once, arguments! {
        /// ID of the group.
        id: ArgumentType::Form(IdFormat::PlacementGroupId);
        /// Name of the group.
        name: ArgumentType::Form(IdFormat::Filled);
    };
}
