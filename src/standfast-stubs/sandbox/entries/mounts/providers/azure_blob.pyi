from standfast.sandbox import AzureBlobMount as AzureBlobMount
