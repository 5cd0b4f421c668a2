//! Encodes a resource as a field of a response, in both protocol forms.

/// Encodes a resource as a `Resource` of a `DeltaDiscoveryResponse`.
pub(super) mod delta {
    use crate::resource::{Resource, ResourceType, Version};
    use crate::wire::{any_len, bytes_len, message_len, put_any, put_bytes, put_head};
    use strait_http2::Rope;

    /// Field numbers of `DeltaDiscoveryResponse` and its `Resource`.
    mod field {
        pub(super) const RESOURCES: u32 = 2;
        pub(super) const RESOURCE_VERSION: u32 = 1;
        pub(super) const RESOURCE_BODY: u32 = 2;
        pub(super) const RESOURCE_NAME: u32 = 3;
    }

    /// Writes a resource of a response with the given version.
    pub(crate) fn put_resource(
        kind: ResourceType,
        resource: &Resource,
        version: Version,
        out: &mut Rope,
    ) {
        put_head(field::RESOURCES, resource_len(kind, resource), out);
        put_bytes(field::RESOURCE_VERSION, &version.text(), out);
        put_any(field::RESOURCE_BODY, kind, resource, out);
        put_bytes(field::RESOURCE_NAME, resource.name.as_bytes(), out);
    }

    /// The number of bytes that [`put_resource`] writes.
    pub(crate) fn resource_field_len(kind: ResourceType, resource: &Resource) -> usize {
        message_len(field::RESOURCES, resource_len(kind, resource))
    }

    fn resource_len(kind: ResourceType, resource: &Resource) -> usize {
        message_len(field::RESOURCE_VERSION, Version::LENGTH)
            + any_len(field::RESOURCE_BODY, kind, resource)
            + bytes_len(field::RESOURCE_NAME, resource.name.as_bytes())
    }
}

/// Encodes a resource as an `Any` of a `DiscoveryResponse`.
pub(super) mod sotw {
    use crate::resource::{Resource, ResourceType};
    use crate::wire::{any_len, put_any};
    use strait_http2::Rope;

    /// The field number of `resources` in a `DiscoveryResponse`.
    const RESOURCES: u32 = 2;

    /// Writes a resource of a response.
    pub(crate) fn put_resource(kind: ResourceType, resource: &Resource, out: &mut Rope) {
        put_any(RESOURCES, kind, resource, out);
    }

    /// The number of bytes that [`put_resource`] writes.
    pub(crate) fn resource_field_len(kind: ResourceType, resource: &Resource) -> usize {
        any_len(RESOURCES, kind, resource)
    }
}
